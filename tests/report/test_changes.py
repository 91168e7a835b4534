"""What the report says of the numbers before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from merganser.evaluation.examples import compare_predictions, write_results
from merganser.report.paired import read_significance, worse_scores
from merganser.report.sections.changes import Change, Changes, read_changes
from tests.report.test_plots import row

PREVIOUS_METRICS = {
    "ties": {"accuracy": {"dark": 0.5, "light": 0.25}, "mean": 0.375, "normalised_score": None},
    "gone": {"accuracy": {"dark": 1.0}, "mean": 1.0},
}
NOW = {
    "ties": {"accuracy": {"dark": 0.75, "light": 0.25}, "mean": 0.5, "normalised_score": None},
    "new": {"mean": 0.125},
}


def kept(folder: Path, **content: Any) -> Path:
    path = folder / "previous_metrics.json"
    path.write_text(
        json.dumps(
            {"run": "blue-fox", "numbers": PREVIOUS_METRICS, "causes": {"fetch@dark": ["dep changed"]}} | content
        )
    )
    return path


def test_each_number_that_differs_is_told_before_and_after(tmp_path: Path) -> None:
    changes = read_changes(kept(tmp_path), "blue-fox", NOW)
    assert changes == Changes(
        run="blue-fox",
        causes={"fetch@dark": ["dep changed"]},
        changed=[
            Change("ties", "accuracy/dark", 0.5, 0.75),
            Change("ties", "mean", 0.375, 0.5),
            Change("new", "mean", None, 0.125),
            Change("gone", "accuracy/dark", 1.0, None),
            Change("gone", "mean", 1.0, None),
        ],
        same=2,
    )
    assert [change.difference for change in changes.changed] == [0.25, 0.125, None, None, None]


def test_numbers_that_stayed_are_said_to_have_stayed(tmp_path: Path) -> None:
    changes = read_changes(kept(tmp_path), "blue-fox", PREVIOUS_METRICS)
    assert changes
    assert (changes.changed, changes.same) == ([], 6)


def test_a_score_on_an_unseen_task_is_a_number_like_others(tmp_path: Path) -> None:
    before, now = ({"ties": {"mean": 0.5, "unseen": {"accuracy": {"street": each}}}} for each in (0.25, 0.5))
    changes = read_changes(kept(tmp_path, numbers=before), "blue-fox", now)
    assert changes
    assert changes.changed == [Change("ties", "unseen/accuracy/street", 0.25, 0.5)]
    assert changes.same == 1


@pytest.mark.parametrize(("run", "content"), [(None, {}), ("red-fox", {}), ("blue-fox", {"numbers": {}})])
def test_nothing_is_said_of_numbers_that_this_run_did_not_find(
    tmp_path: Path, run: str | None, content: dict[str, Any]
) -> None:
    assert read_changes(kept(tmp_path, **content), run, NOW) is None


def test_nothing_is_said_where_nothing_was_kept(tmp_path: Path) -> None:
    assert read_changes(tmp_path / "previous_metrics.json", "blue-fox", NOW) is None


def write_scores(folder: Path, entry: str, right: dict[str, int], examples: int = 200, *, unseen: bool = False) -> None:
    """Write a run's files of an entry that is right on the first examples of each task, with a model or `unseen`."""
    of_metrics, of_examples = ("measures/unseen", "measures/unseen") if unseen else ("metrics", "examples")
    for task, count in right.items():
        results = compare_predictions("accuracy", [1] * count + [0] * (examples - count), [1] * examples)
        write_results(folder / of_examples / entry / f"{task}.safetensors", results)
        metrics = folder / of_metrics / entry / f"{task}.json"
        metrics.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_text(json.dumps({"metric": "accuracy", "value": count / examples, "stderr": 0.03}))


def test_scores_that_fell_by_more_than_the_sampling_error_are_named_and_no_others(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for entry, then, now in (("falls", 160, 120), ("dips", 160, 158), ("rises", 120, 160), ("same", 150, 150)):
        write_scores(before, entry, {"dark": then, "light": 100})
        write_scores(after, entry, {"dark": now, "light": 100})
    worse = worse_scores(["falls", "dips", "rises", "same", "new"], ["dark", "light"], [], before, after)
    assert [(line.entry, line.column, line.first, line.second) for line in worse] == [
        ("falls", "mean", 0.65, 0.55),
        ("falls", "dark", 0.8, 0.6),
    ]
    assert all(line.p is not None and line.p < 0.05 for line in worse)


def test_the_mean_over_seeds_is_tested_and_not_the_first_seed(tmp_path: Path) -> None:
    """The first seed's answers get better by far, the mean over the seeds falls a little."""
    labels = np.arange(200) % 2
    for run, answers, value in (("before", labels[::-1], 0.8), ("after", labels, 0.79)):
        write_scores(tmp_path / run, "dare", {"dark": 0})
        answered = np.where(np.arange(200) < 120, labels, answers)
        results = compare_predictions("matthews", answered, labels)
        write_results(tmp_path / run / "examples/dare/dark.safetensors", results)
        (tmp_path / run / "metrics/dare/dark.json").write_text(json.dumps({"metric": "matthews", "value": value}))
    assert worse_scores(["dare"], ["dark"], [], tmp_path / "before", tmp_path / "after") == ()
    rows = [row(run, "dare", value, 0.0) for run, value in (("before", 0.8), ("after", 0.79))]
    matthews = [
        replace(one, scores=replace(one.scores, by_task={"dark": one.scores.by_task["task"] | {"metric": "matthews"}}))
        for one in rows
    ]
    for run in ("before", "after"):
        (tmp_path / "examples").mkdir(exist_ok=True)
        (tmp_path / "examples" / run).symlink_to(tmp_path / run / "examples/dare")
    verdict = read_significance(matthews, tmp_path / "examples").verdicts["after", "dark"]
    assert (verdict.best, verdict.difference) == ("before", pytest.approx(-0.01))


def test_scores_of_other_examples_are_not_judged(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    write_scores(before, "ties", {"dark": 160})
    write_scores(after, "ties", {"dark": 20}, examples=100)
    assert worse_scores(["ties"], ["dark"], [], before, after) == ()
    assert worse_scores(["ties"], ["dark"], [], tmp_path / "none", after) == ()


def test_falls_on_tasks_without_a_model_are_named_apart_from_the_others(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, street in ((before, 160), (after, 120)):
        write_scores(folder, "ties", {"dark": 150})
        write_scores(folder, "ties", {"street": street, "cover": 100}, unseen=True)
    worse = worse_scores(["ties"], ["dark"], ["street", "cover"], before, after)
    assert [(line.column, line.first, line.second) for line in worse] == [
        ("unseen", 0.65, 0.55),
        ("unseen_street", 0.8, 0.6),
    ]
    assert worse_scores(["ties"], ["dark"], [], before, after) == ()
