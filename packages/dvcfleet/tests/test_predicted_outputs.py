"""A project may tell what a stage will write: what reads it is then judged before that stage ran."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dvcfleet import project
from tests.dvcfleet.toy import Make, Toy

# What is written for each letter depends on the letter alone, not on the rest of the source.
DVC_YAML = """
stages:
  split:
    cmd: echo split >> log; mkdir -p parts/more; for l in a b; do grep $l source > parts/$l; done; cp parts/b parts/more
    deps: [source]
    outs: [parts]
  a:
    cmd: echo a >> log; cat parts/a > a
    deps: [parts/a]
    outs: [a]
  b:
    cmd: echo b >> log; cat parts/b > b
    deps: [parts/b, other]
    outs: [b]
  more:
    cmd: echo more >> log; cat parts/more/* > more
    deps: [parts/more]
    outs: [more]
  end:
    cmd: echo end >> log; cat a b > end
    deps: [a, b]
    outs: [end]
"""
FILES = {
    "source": "a1\nb1\nx1\n",
    "other": "1",
    "pyproject.toml": '[tool.dvcfleet]\nproject = "tests.dvcfleet.test_predicted_outputs:PROJECT"\n',
}


class Project(project.Project):
    """Knows what `split` writes, unless the source says `?`."""

    def predict_outputs(self, stage: str) -> Mapping[str, str] | None:
        """Return the parts."""
        lines = Path("source").read_text().splitlines(keepends=True)
        if stage != "split" or "?\n" in lines:
            return None
        parts = {letter: "".join(line for line in lines if line[0] == letter) for letter in "ab"}
        return {"parts/a": parts["a"], "parts/b": parts["b"], "parts/more/b": parts["b"]}


PROJECT = Project()


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Toy:
    """The stages, run."""
    repository = Toy(tmp_path_factory.mktemp("predicted") / "toy", DVC_YAML, FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        code, text = repository.run()
    assert code == 0, text
    repository.ran()
    return repository


@pytest.fixture
def done(ran_once: Toy, toy: Make) -> Toy:
    """A copy of it."""
    return toy.copy_of(ran_once)


def work(repository: Toy) -> dict[str, str]:
    return {name: state for name, state in repository.states().items() if state != "up to date"}


def test_a_stage_that_will_write_the_same_runs_alone(done: Toy) -> None:
    done.write("source", "a1\nb1\nx2\n")
    assert work(done) == {"split": "stale"}
    assert done.run()[0] == 0
    assert done.ran() == ["split"]
    assert done.settled()


def test_what_reads_a_file_that_will_be_another_is_stale_and_the_rest_is_not(done: Toy) -> None:
    done.write("source", "a2\nb1\nx1\n")
    assert work(done) == {"split": "stale", "a": "stale", "end": "waiting"}
    assert done.reasons("a") == ["dep parts/a will change"]
    assert done.run()[0] == 0
    assert done.ran() == ["split", "a", "end"]
    assert done.settled()


def test_a_folder_that_will_be_another_is_told_by_its_files(done: Toy) -> None:
    done.write("source", "a1\nb2\nx1\n")
    assert work(done) == {"split": "stale", "b": "stale", "more": "stale", "end": "waiting"}
    assert done.reasons("more") == ["dep parts/more will change"]


def test_other_reasons_are_told_besides(done: Toy) -> None:
    done.write("source", "a1\nb2\nx1\n")
    done.write("other", "2")
    assert done.reasons("b") == ["dep parts/b will change", "dep other changed"]


def test_what_is_not_known_is_waited_for(done: Toy) -> None:
    done.write("source", "a1\nb1\n?\n")
    assert work(done) == {"split": "stale", "a": "waiting", "b": "waiting", "more": "waiting", "end": "waiting"}


def test_a_wrong_prediction_runs_no_stage_needlessly(done: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Project, "predict_outputs", lambda self, stage: {"parts/a": "wrong"} if stage == "split" else None
    )
    done.write("source", "a1\nb1\nx2\n")
    assert work(done)["a"] == "stale"
    assert done.run()[0] == 0
    assert done.ran() == ["split"]
    assert done.settled()
