"""What the differential drill found: repositories in which the engine once did otherwise than `dvc repro`."""

from pathlib import Path

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
