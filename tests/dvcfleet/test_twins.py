"""What the differential drill found: repositories in which the engine once did otherwise than `dvc repro`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.dvcfleet.twins import SAY, Twins

FROZEN = f"""
stages:
  fails: {{cmd: "{SAY}; exit 3", outs: [made]}}
  frozen: {{cmd: "{SAY}", deps: [made], frozen: true}}
  always: {{cmd: "{SAY}", deps: [source], frozen: true, always_changed: true}}
  other: {{cmd: "{SAY}", deps: [source]}}
"""


def test_a_frozen_stage_that_never_ran_and_writes_nothing_is_left_alone(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": FROZEN, "source": "s"})
    assert twins.both() == {}, twins.said
    assert twins.did == ["fails", "other"]


# What DVC brings by itself, without a command: an import, and an output of a frozen stage that was given.
BROUGHT = f"""
stages:
  given: {{cmd: "{SAY}; cp source given", deps: [source], outs: [given], frozen: true}}
  after: {{cmd: "{SAY}; cat given imported > after", deps: [given, imported], outs: [after]}}
"""
IMPORT = "deps: [{path: source, hash: md5}]\nouts: [{path: imported, hash: md5}]\n"


def test_what_no_command_makes_is_hidden_from_git_once(toy: object, tmp_path: Path) -> None:
    files = {"dvc.yaml": BROUGHT, "imported.dvc": IMPORT, "source": "s", "given": "of the user's"}
    twins = Twins(tmp_path / "twins", files)
    assert twins.both() == {}, twins.said
    assert twins.did == ["after"]


PLAIN = f"""
stages:
  copy: {{cmd: "{SAY}; cat source > copied", deps: [source], outs: [copied]}}
  count: {{cmd: "{SAY}; cat copied > m.json", deps: [copied], metrics: [{{m.json: {{cache: false}}}}]}}
"""
REFUSALS = {
    "missing": "git is not installed: the run goes on without it",
    "another owner": "git refuses (detected dubious ownership in repository at",
}


@pytest.mark.parametrize("how", REFUSALS)
def test_a_git_that_is_missing_or_refuses_costs_no_work(
    toy: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": PLAIN, "source": "1"})
    for side in ("ours", "theirs"):
        subprocess.run(["git", "add", "--all"], cwd=twins.at(side), check=True)
    (tmp_path / "bin").mkdir()
    for program in ("sh", "cat"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")
    if how == "missing":
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    else:
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "true")  # git's own switch for its tests
    assert twins.both() == {}, twins.said
    assert REFUSALS[how] in twins.said
    assert ("safe.directory" in twins.said) == (how == "another owner")
    twins.write("m.json", "edited")  # git is asked whether it has it
    assert twins.both() == {}, twins.said
