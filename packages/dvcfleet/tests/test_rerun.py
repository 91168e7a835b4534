"""Stages run again with another parameter, as on another device: metrics within tolerances in place of bytes."""

import json
from pathlib import Path

import pytest

from dvcfleet.lineage.audit import Audit, audit
from dvcfleet.lineage.rerun import Rerun, RerunError, differences
from tests import PYTHONPATH
from tests.dvcfleet.toy import Make, Toy
from tests.support import forking

ROOT = Path(__file__).parents[2]
# What the scores are depends on the device; what `stamp` writes does not, and has other bytes each time.
SCORED = """
stages:
  stamp:
    cmd: date +%N > stamp.txt
    outs: [stamp.txt]
  score:
    foreach: [within, beyond]
    do:
      cmd: cp params.yaml ${item}.model; cp given/${item}-$(cut -d ' ' -f 2 params.yaml).json ${item}.json
      deps: [given]
      params: [device]
      outs: ["${item}.model"]
      metrics: ["${item}.json"]
"""
FILES = {
    "params.yaml": "device: cuda\n",
    "given/within-cuda.json": '{"kind": "toy", "scores": {"a": 0.5, "b": 0.93}, "speed": 2}',
    "given/within-cpu.json": '{"kind": "toy", "scores": {"a": 0.5, "b": 0.9345}, "speed": 9}',
    "given/beyond-cuda.json": '{"scores": {"a": 0.5, "b": 0.93}}',
    "given/beyond-cpu.json": '{"scores": {"a": 0.5, "b": 0.88}}',
    "profiles.yaml": "two: {workers: 2}\n",
    "pyproject.toml": '[tool.dvcfleet]\nproject = "tests.dvcfleet.tolerant:TOLERANT"\n',
}


@pytest.fixture
def scored(toy: Make, monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    made = toy(SCORED, FILES)
    assert made.run()[0] == 0
    return made


def again(toy: Toy, how: Rerun) -> Audit:
    with forking():
        return audit(toy.path, again=how)


def test_on_another_device_metrics_are_compared_within_tolerances_and_bytes_where_inputs_are_the_same(
    scored: Toy,
) -> None:
    done = again(scored, Rerun("two", {"device": ("cuda", "cpu")}))
    stamp, beyond = done.findings
    assert done.run_again
    assert (stamp.name, stamp.message) == ("stamp.txt", "stamp writes different bytes when run again")
    said = "0.93 was recorded, 0.88 written when run again, further apart than 0.01 (device cpu instead of cuda)"
    assert str(beyond) == f"not reproduced: beyond.json: scores.b: {said}"


def test_an_output_marked_as_a_metric_is_compared_like_a_declared_one(scored: Toy) -> None:
    marked = SCORED.replace('      metrics: ["${item}.json"]\n', "").replace(
        '["${item}.model"]', '["${item}.model", {"${item}.json": {meta: {dvcfleet: {metric: true}}}}]'
    )
    scored.write("dvc.yaml", marked)
    done = again(scored, Rerun("two", {"device": ("cuda", "cpu")}))
    assert [finding.name for finding in done.findings] == ["stamp.txt", "beyond.json"]


def test_a_rerun_by_a_profile_that_does_not_exist_says_so(scored: Toy) -> None:
    with pytest.raises(RerunError, match=r"no profile 'three'; there are two"):
        again(scored, Rerun("three"))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": 1.0, "b": None}, {"a": 1.005, "b": None}, []),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": [0.1, 0.2]}, {"a": [0.1, 0.3]}, ["a.1: 0.2 was recorded, 0.3 written when run again, further apart"]),
        ({"a": 0.5}, {"a": float("nan")}, ["a: 0.5 was recorded, nan written when run again, further apart"]),
        ({"a": "x"}, {"a": "y"}, ['a: "x" was recorded, "y" written when run again']),
        ({"a": 1}, {"b": 1}, ['all of it: {"a": 1} was recorded, {"b": 1} written when run again']),
        ({"speed": 1}, {"speed": 2}, []),
    ],
)
def test_numbers_are_compared_within_the_tolerance_and_all_else_exactly(
    tmp_path: Path, before: object, after: object, said: list[str]
) -> None:
    files = tmp_path / "before.json", tmp_path / "after.json"
    for file, content in zip(files, (before, after), strict=True):
        file.write_text(json.dumps(content))
    found = list(differences(*files, lambda _, place: None if place == ("speed",) else 0.01))
    assert [line.partition(" than")[0] for line in found] == said


def test_a_metric_file_in_another_format_is_compared_as_one_text(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("score: 1\n")
    (tmp_path / "after").write_text("score: 2\n")
    (found,) = differences(tmp_path / "before", tmp_path / "after", lambda _, place: 10.0)
    assert found == r'all of it: "score: 1\n" was recorded, "score: 2\n" written when run again'
