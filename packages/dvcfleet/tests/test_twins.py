"""What the differential drill found: repositories in which the engine once did otherwise than `dvc repro`."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from dvcfleet.lineage.audit import audit
from tests.dvcfleet.twins import OURS, SAY, THEIRS, Twins

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


# Values that YAML or JSON may give back as others, in parameters, a command and a file's name.
ODD = {
    "params.yaml": r"""
nel: "x\u0085y"
separator: "x\u2028y\u2029"
control: "\a\x7f\x9b"
numbers: [1e5, 1.0e+300, -0.0, .inf, 012, 0o14, 1_000, 123456789012345678901234567890, 0.30000000000000004]
words: ["on", yes, "1e5", "~", "12:30", "", " x ", "a\n\n"]
""",
    "other.json": r'{"nel": "\u0085", "big": 1e400, "deep": {"x y": "#"}}',
    "source": "s",
    "named/l\u2028ne": "s",
}
OF_ODD = f"""
stages:
  odd: {{cmd: "{SAY}; echo > odd", deps: [source], params: [nel, separator, control, numbers, words], outs: [odd]}}
  json: {{cmd: "{SAY}; echo > json", deps: [source], params: [{{other.json: [nel, big, deep]}}], outs: [json]}}
  line: {{cmd: "{SAY}; cp named/* .", deps: [named], outs: ["l\\u2028ne"]}}
  plain: {{cmd: "{SAY}; cat odd > plain", deps: [odd, other], outs: [plain]}}
"""


def test_what_yaml_does_not_give_back_as_it_was_runs_no_more_often(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": OF_ODD, **ODD, "other": "1"})
    assert twins.both() == {}, twins.said
    assert len(twins.did) == 4
    assert twins.both() == {}, twins.said
    assert twins.did == []
    twins.write("other", "2")
    assert twins.both() == {}, twins.said
    assert twins.did == ["plain"]
    assert audit(twins.at(OURS)).findings == ()


CUT = f"""
stages:
  cut: {{cmd: "{SAY}; cat source > cut", deps: [source], outs: [cut]}}
"""


def test_dvc_lock_keeps_its_mode_and_stays_a_link(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": CUT, "source": "s"})
    assert twins.both() == {}, twins.said
    for side in (OURS, THEIRS):
        lock, real = twins.at(side) / "dvc.lock", twins.at(side) / "locks/real"
        real.parent.mkdir()
        lock.rename(real)
        real.chmod(0o640)
        if os.geteuid() == 0:  # as in a container with somebody's folder
            os.chown(real, 1234, 2345)
        lock.symlink_to("locks/real")
    twins.write("source", "t")
    assert twins.both() == {}, twins.said
    assert twins.did == ["cut"]
    assert (twins.at(OURS) / "dvc.lock").readlink() == Path("locks/real")
    ours = twins.at(OURS) / "locks/real"
    assert "size: 1" in ours.read_text()
    assert stat.S_IMODE(ours.stat().st_mode) == 0o640
    if os.geteuid() == 0:
        assert (ours.stat().st_uid, ours.stat().st_gid) == (1234, 2345)


def test_links_that_the_disk_does_not_have_are_refused_before_any_work(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": CUT, "source": "s"})
    for side in (OURS, THEIRS):
        (twins.at(side) / ".dvc/config").write_text("[cache]\n    type = reflink\n")
    differ = twins.both()
    if "no possible link type" not in twins.said:
        pytest.skip("this disk has reflinks")
    assert "succeeded" not in differ
    assert twins.did == ["cut"]  # by DVC, which finds out afterwards
    assert "dvc config cache.type reflink,copy" in twins.said
    assert not (twins.at(OURS) / "cut").exists()


def test_a_cache_that_cannot_be_made_is_refused_before_any_work(toy: object, tmp_path: Path) -> None:
    twins = Twins(tmp_path / "twins", {"dvc.yaml": CUT, "source": "s"})
    for side in (OURS, THEIRS):
        (twins.at(side) / ".dvc/config").write_text("[cache]\n    dir = ../source\n")  # a file
    assert "succeeded" not in twins.both()
    assert twins.did == ["cut"]  # by DVC, which finds out afterwards
    assert "DVC's cache cannot be made" in twins.said
    assert "dvc config cache.dir" in twins.said
    assert not (twins.at(OURS) / "cut").exists()
