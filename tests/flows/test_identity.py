"""Comparisons in one git repository and with one cache: each has its own runs in history, diff and gc."""

import json
import shutil
import subprocess
from contextlib import chdir
from datetime import timedelta
from pathlib import Path

import pytest
from dvc.repo import Repo

from dvcfleet.lineage.audit import audit, look_up
from dvcfleet.lineage.show import Why, why, why_lines
from dvcfleet.lineage.steps import Lineage
from dvcfleet.project import Project
from dvcfleet.record.ledger import executions
from merganser.errors import InputError
from merganser.flows.commands.gc import collect_garbage
from merganser.flows.evidence.runs.history import read_history
from merganser.flows.evidence.runs.run import run_names
from merganser.flows.repositories.identity import LIST, identity, note_sharers, own_identities
from merganser.tasks.identity import FILE, experiment_names, write_id
from tests.dvcfleet.test_experiments import committed, git, run
from tests.dvcfleet.toy import Make, Toy
from tests.flows.test_history import PARAMS, SCORES, write


class Named(Project):
    """A project whose runs say which comparison's they are, as Merganser's do."""

    def identity(self, root: Path) -> str:
        return identity(root)


NAMED = Named()
DECLARED = '[tool.dvcfleet]\nproject = "tests.flows.test_identity:NAMED"\n'


def why_of(root: Path, target: str) -> tuple[Why, Lineage]:
    with chdir(root):
        found, lineage = look_up(root, target)
    return why(found, lineage), lineage


def compare(folder: Path, density: float) -> Toy:
    """Give a comparison of its own in a folder of a git repository, its scores not measured yet."""
    folder.mkdir()
    Repo.init(str(folder), subdir=True).close()
    made = Toy(folder, "", {})
    for name, text in {"dvc.yaml": SCORES, "pyproject.toml": DECLARED}.items():
        made.write(name, text)
    made.write("params.yaml", PARAMS.replace("0.5", str(density)))
    (folder / FILE.parent).mkdir()
    write_id(folder)
    return made


@pytest.fixture
def two(tmp_path: Path, toy: Make, monkeypatch: pytest.MonkeyPatch) -> tuple[Toy, Toy]:
    """Give two comparisons in a git repository with the first's cache, one run of each and one more of the first."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    first, second = (compare(tmp_path / name, density) for name, density in (("first", 0.5), ("second", 0.1)))
    second.write(".dvc/config.local", f"[cache]\n    dir = {first.path / '.dvc/cache'}\n")
    note_sharers(first.path / ".dvc/cache", first.path, second.path)
    committed(first)
    for made, name, dark in ((first, "old-run", 120), (second, "only-run", 140), (first, "new-run", 130)):
        write(made, dark)
        assert run(made, name, monkeypatch)[0] == 0
    return first, second


def test_each_has_a_history_of_its_own_and_so_have_a_copy_and_a_worktree_but_not_a_clone(
    two: tuple[Toy, Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    assert [point.run for point in read_history(first.path)] == ["old-run", "new-run"]
    assert [change.split(":")[0] for change in read_history(first.path)[1].changed] == ["input made"]
    assert [(point.run, point.changed) for point in read_history(second.path)] == [("only-run", ())]
    assert [list(run_names(made.path)) for made in two] == [["new-run", "old-run"], ["only-run"]]
    lines = {line.identity for line in executions(second.path / ".dvcfleet")}
    assert lines == {identity(second.path)} == {f"{(second.path / FILE).read_text().strip()}:second"}
    assert audit(second.path).findings == ()
    git(first, "worktree", "add", "-q", str(tmp_path / "beside"))
    subprocess.run(["git", "clone", "-q", str(tmp_path), str(tmp_path / "clone")], check=True)
    shutil.copytree(first.path, tmp_path / "third", symlinks=True)
    (own,) = (first.path / FILE).read_text().split()
    places = [folder / "first" for folder in (tmp_path, tmp_path / "clone", tmp_path / "beside")]
    assert [identity(place) for place in places] == [f"{own}:first", f"{own}:first", f"{own}:first@beside"]
    assert own_identities(first.path) == {"", f"{own}:first", "clone:first"}
    third = Toy(tmp_path / "third", "", {})
    for made, other in ((first, False), (third, True)):
        said = list(why_lines(*why_of(made.path, "data/metrics/ties/dark.json")))
        line = f"made in    another repository, {own}:first; this one is {own}:third"
        assert (line in said, any(each.startswith("made in") for each in said)) == (other, other)
    write(third, 150)
    assert "not saved as a DVC experiment" in run(third, "new-run", monkeypatch)[1]
    write(third, 160)
    assert run(third, "third-run", monkeypatch)[0] == 0
    assert [point.run for point in read_history(third.path)][-1] == "third-run"
    for made in (first, third):  # which have the first lines of their ledgers in common
        assert audit(made.path).findings == ()


def test_what_gc_frees_in_one_is_not_what_the_other_saved(two: tuple[Toy, Toy]) -> None:
    first, second = two
    write(second, 141)  # so that its run's data is of no workspace
    shutil.rmtree(second.path / "data")
    (second.path / "dvc.lock").unlink()
    found = collect_garbage(first.path, timedelta(), best=False, do=True)
    assert "experiments: 1 run of other comparisons in this git repository" in found.left
    assert [list(run_names(made.path)) for made in two] == [["new-run"], ["only-run"]]
    git(second, "checkout", run_names(second.path)["only-run"], "--", "dvc.lock")
    with Repo(str(second.path)) as repo:
        repo.checkout(force=True)
    assert (second.path / "data/metrics/ties/dark.json").is_file()
    shutil.rmtree(second.path)
    (line,) = (line for line in collect_garbage(first.path, timedelta(), best=False, do=True).left if "cache" in line)
    assert f"{second.path} shares it, and is not there" in line
    assert line.endswith(str(first.path / ".dvc/cache" / LIST))


def test_in_mlflow_a_comparison_has_an_experiment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert experiment_names(tmp_path) == ["merganser"]
    (tmp_path / FILE.parent).mkdir()
    write_id(tmp_path)
    own = f"merganser-{(tmp_path / FILE).read_text().strip()}"
    assert experiment_names(tmp_path) == [own, "merganser"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///shared.db")
    assert experiment_names(tmp_path) == [own]
    (tmp_path / FILE).write_text(json.dumps({}))
    with pytest.raises(InputError, match="not an id of 16 hexadecimal digits"):
        experiment_names(tmp_path)
