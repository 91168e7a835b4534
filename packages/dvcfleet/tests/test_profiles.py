from pathlib import Path
from typing import Any

import pytest

from dvcfleet.errors import UserError
from dvcfleet.placement import Placement, choose_placement
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make

PROFILES = """
laptop: {workers: 2}
gpu:
  workers: 8
  stages:
    merge: {resources: {gpus: 1}, timeout: 2h}
ray: {runner: ray, address: "127.0.0.1:6379"}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "profiles.yaml").write_text(PROFILES)
    return tmp_path


def test_without_a_profile_a_run_is_in_threads_here() -> None:
    assert choose_placement(Path("nowhere"), None, runner=None, address=None, workers=None) == Placement("threads")


def test_what_is_said_goes_before_the_profile(root: Path) -> None:
    assert choose_placement(root, "ray") == Placement("ray", "127.0.0.1:6379")
    assert choose_placement(root, "ray", address="127.0.0.1:1", workers=3) == Placement("ray", "127.0.0.1:1", 3)


def test_the_repositorys_own_profiles_are_in_order() -> None:
    here = Path(__file__).parents[2]
    assert choose_placement(here, "laptop").runner == "threads"
    assert choose_placement(here, "gpu").workers == 16
    assert choose_placement(here, "ray").runner == "ray"
    assert choose_placement(here, "dask-slurm").runner == "dask"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no profile 'p'; there are none"),
        ("q: {}", "no profile 'p'; there are q"),
        ("p: [threads]", "should be a map"),
        ("p: {runer: ray}", "p.runer: unknown; there are runner, address, workers, stages"),
        ("p: {workers: many}", "p.workers: should be a int, got 'many'"),
        ("p: {workers: true}", "p.workers: should be a int, got True"),
        ("p: {workers: -1}", "p.workers: should be a int, got -1"),
        ("p: {workers: 1, workers: 2}", 'found duplicate key "workers"'),
        ("p: {workers: 2001-99-99}", "cannot be read as YAML: month must be in 1..12"),
        (f"p: {'[' * 9999}{']' * 9999}", "cannot be read as YAML"),
        ("p: {stages: {a: 1}}", "p.stages.a: should be a map"),
        ("p: {stages: {a: {retrys: 1}}}", "p.stages.a.retrys: unknown; there are resources, retries, timeout"),
        ("p: {stages: {a: {timeout: long}}}", "p.stages.a.timeout should be an amount"),
        ("p: {runner: pigeon}", "no runner 'pigeon'"),
        ("p: {address: 'a:1'}", "--address is for --runner dask and ray; --runner threads takes none"),
        ("p: {", "cannot be read as YAML"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "profiles.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        choose_placement(tmp_path, "p")
    assert told in str(raised.value)


def test_a_missing_file_and_a_stage_that_is_not_there_are_refused(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    code, text = chain.run(profile="p")
    assert (code, "--profile p: there is no file" in text) == (2, True)
    chain.write("profiles.yaml", "p: {stages: {turned: {timeout: 1h}}}")
    assert chain.run(profile="p", dry_run=True)[0] == 2
    code, text = chain.run(profile="p")
    assert (code, "stages.turned: there is no such stage in dvc.yaml" in text) == (2, True)
    assert chain.ran() == []


def test_a_profile_may_name_stages_of_which_there_are_none_now(toy: Make) -> None:
    stages = f"{CHAIN}\n  each: {{foreach: {{}}, do: {{cmd: 'echo ${{key}}'}}}}\n"
    chain = toy(stages, CHAIN_FILES | {"profiles.yaml": "p: {stages: {each: {timeout: 1h}}}"})
    code, text = chain.run(profile="p")
    assert code == 0, text


@pytest.mark.parametrize("gpus", ["0", "7"])
def test_a_profile_gives_its_stages_gpus_of_this_machine(toy: Make, monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    seeing = toy(
        """
        stages:
          one: {cmd: "echo $CUDA_VISIBLE_DEVICES > one.txt", deps: [source], outs: [one.txt]}
          two: {cmd: "echo $CUDA_VISIBLE_DEVICES > two.txt", deps: [source], outs: [two.txt]}
        """,
        {"source": "", "profiles.yaml": "gpu: {stages: {one: {resources: {gpus: 1}}}}"},
    )
    assert seeing.run(profile="gpu")[0] == 0
    assert (seeing.read("one.txt"), seeing.read("two.txt")) == (f"{gpus}\n", "\n")
