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
