"""What the event loop does with stages that fail."""

import pytest
import yaml

from tests.dvcfleet.toy import Make

DIAMOND = """
stages:
  top: {cmd: exit 1, deps: [source], outs: [top]}
  left: {cmd: echo 1 > left, deps: [top], outs: [left]}
  right: {cmd: echo 1 > right, deps: [top], outs: [right]}
  bottom: {cmd: echo 1 > bottom, deps: [left, right], outs: [bottom]}
  last: {cmd: echo 1 > last, deps: [bottom], outs: [last]}
"""


def test_each_descendant_of_a_failed_stage_is_told_once(toy: Make) -> None:
    code, text = toy(DIAMOND, {"source": ""}).run()
    assert code == 1
    assert "1 failed, 4 blocked" in text
    for name in ("left", "right", "bottom", "last"):
        assert text.count(f"] {name} blocked: ") == 1


def test_stages_that_the_plan_finds_blocked_are_told_once(toy: Make) -> None:
    code, text = toy(DIAMOND, {}).run()
    assert code == 1
    for name in ("top", "left", "right", "bottom", "last"):
        assert text.count(f"] {name} blocked: ") == 1


def test_a_long_chain_whose_first_stage_fails_is_blocked(toy: Make) -> None:
    length = 1200
    stages = {"s0": {"cmd": "exit 1", "deps": ["source"], "outs": ["0"]}}
    stages |= {f"s{n}": {"cmd": f"echo > {n}", "deps": [f"{n - 1}"], "outs": [f"{n}"]} for n in range(1, length)}
    code, text = toy(yaml.safe_dump({"stages": stages}), {"source": ""}).run()
    assert code == 1
    assert f"1 failed, {length - 1} blocked" in text
    assert len([line for line in text.splitlines() if " blocked: " in line]) == length - 1


LARGE = """
stages:
  large: {cmd: truncate -s 512M large, deps: [source], outs: [large]}
  one: {cmd: echo 1 > one, deps: [source], outs: [one]}
  two: {cmd: echo 1 > two, deps: [one], outs: [two]}
  three: {cmd: echo 1 > three, deps: [two], outs: [three]}
"""


@pytest.mark.slow
def test_while_a_large_output_is_stored_other_stages_are_started_and_taken(toy: Make) -> None:
    large = toy(LARGE, {"source": ""})
    code, text = large.run(workers=2)
    assert code == 0, text
    assert text.index("] three done") < text.index("] large done")
    assert large.settled()


def test_a_large_output_that_cannot_be_stored_fails_its_stage(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dvcfleet.workspaces.local.LARGE_BYTES", 0)
    code, text = toy("stages: {a: {cmd: echo, outs: [x]}, b: {cmd: echo 1 > y, deps: [x], outs: [y]}}", {}).run()
    assert code == 1
    assert "a failed: output 'x' does not exist" in text
    assert "1 failed, 1 blocked" in text
