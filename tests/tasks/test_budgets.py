"""The stage of budgets, on the tiny comparison, and what the report makes of them."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from merganser.config.loading import load_params
from merganser.config.points import SCORES, Points
from merganser.errors import InputError
from merganser.measures.significance import holm
from merganser.report.sections import study_budgets as report_of_budgets
from merganser.tasks import evaluate, merge
from merganser.tasks.stages import POINTS
from tests.support import each
from tests.tasks.comparison import METHODS, TASKS, inside, measure_points, open_comparison, plots_of, write_sections

AT = [0.02, 0.3]
FITTED: dict[str, dict[str, Any]] = {
    "svd": {"method": "svd", "reads": "svd"},
    "byom_lora": {"method": "byom_lora", "reads": "svd"},
    "t_switch": {"method": "t_switch", "reads": "deltas"},
    "byom_fft": {"method": "byom_fft", "reads": "deltas"},
    "emr": {"method": "emr", "reads": "deltas"},
}
ENTRIES = {
    "small": {"method": "svd", "reads": "svd", "rank_fraction": "adaptive", "ratio": 0.3},
    "emr": FITTED["emr"],
}


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison whose entries are fitted to two budgets, with two of these as entries."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("budgets") / "comparison"))
    with inside(folder):
        change(methods=METHODS | ENTRIES, studies={"budgets": {"at": AT, "methods": FITTED}})
        for entry in ENTRIES:
            merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
        measure_points()
    return folder


def change(**sections: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text()) | sections
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def found(folder: Path, entry: str, name: str) -> dict[str, Any]:
    point = Points(load_params(folder / "params.yaml")).budgets(entry)[name]
    content: dict[str, Any] = json.loads((folder / POINTS / point.folder / SCORES).read_text())
    return content


@pytest.mark.parametrize(("entry", "budget", "same"), [("svd", "0.3", "small"), ("emr", "fixed", "emr")])
def test_an_entry_at_a_budget_scores_and_weighs_as_the_entry_that_has_its_values(
    made: Path, entry: str, budget: str, same: str
) -> None:
    one = found(made, entry, budget)
    for task in TASKS:
        assert one["scores"][task] == json.loads((made / f"data/metrics/{same}/{task}.json").read_text())
    assert one["amr"] == json.loads((made / f"data/profiles/merge/{same}.json").read_text())["amr"]


@pytest.mark.parametrize("entry", [name for name in FITTED if name != "emr"])
def test_no_entry_takes_more_than_its_budget_nor_leaves_much_of_it(made: Path, entry: str) -> None:
    one = found(made, entry, "0.3")
    # a triple of every matrix of this tiny model, of rank 3 to 32, is much; an entry of a vector is little
    assert 0.3 * (0.97 if entry in ("t_switch", "byom_fft") else 0.5) < one["amr"] <= 0.3 or one["fitted"] == {
        "density": 1.0
    }


def test_an_entry_that_does_not_fit_says_what_it_takes(made: Path) -> None:
    reason = found(made, "byom_lora", "0.02")["reason"]
    assert reason.startswith("k: one triple of every matrix takes 0.")
    assert "scores" not in found(made, "byom_lora", "0.02")


def test_another_budget_is_a_merge_of_its_own(folder: Path) -> None:
    assert not measure_points()
    change(studies={"budgets": {"at": [0.3, 0.5], "methods": FITTED}})
    assert len(measure_points()) == 4  # of the entries that can be brought to a size
    assert 0.3 < found(folder, "svd", "0.5")["amr"] <= 0.5


def test_the_report_tests_each_entry_against_the_best_of_its_budget(made: Path, tmp_path: Path) -> None:
    with inside(made):
        comparison = open_comparison()
        matched = comparison.of(report_of_budgets.read)
        drawn = plots_of(comparison, "study_budgets")
        write_sections(tmp_path, comparison, "study_budgets", "studies")
    assert list(matched.curves) == list(FITTED)
    assert list(matched.budgets) == AT
    members = matched.budgets[0.3]
    best = [one for one in members.values() if one.is_best]
    assert len(best) == 1
    assert best[0].fitted.mean == max(one.fitted.mean for one in members.values())
    others = [one for one in members.values() if not one.is_best]
    assert [one.corrected for one in others] == holm(np.array([one.p for one in others])).tolist()
    assert all(one.difference == pytest.approx(one.fitted.mean - best[0].fitted.mean) for one in others)
    assert ("emr" in matched.budgets[0.02]) == (found(made, "emr", "fixed")["amr"] <= 0.02)
    assert matched.too_small[0.02, "byom_lora"].startswith("k: ")
    rows = list(csv.DictReader((tmp_path / "plots/study_budgets.csv").open()))
    assert [row["entry"] for row in rows if row["budget"] == "0.3"] == list(members)
    assert float(rows[-1]["score"]) == pytest.approx(sum(float(rows[-1][task]) for task in TASKS) / len(TASKS))
    budgets = json.loads((tmp_path / "studies.json").read_text())["budgets"]
    assert [(one["budget"], one["entry"]) for one in budgets["entries"]] == [
        (float(r["budget"]), r["entry"]) for r in rows
    ]
    for one, row in zip(budgets["entries"], rows, strict=True):
        assert [str(one[key]) for key in ("amr", "score", "difference")] == [
            row[key] for key in ("amr", "score", "difference")
        ]
        assert {task: str(score["value"]) for task, score in one["tasks"].items()} == {
            task: row[task] for task in TASKS
        }
        assert (one["p"] is None) == (row["p"] == "")
    assert {(one["budget"], one["entry"]): one["reason"] for one in budgets["too_small"]} == matched.too_small
    assert set(drawn) == {"study_budgets"}


def test_all_entries_with_parts_are_fitted_where_none_is_named(folder: Path) -> None:
    methods = {name: {key: value for key, value in entry.items() if key != "reads"} for name, entry in ENTRIES.items()}
    change(methods=METHODS | methods | {"smile": {"method": "smile", "reads": "svd"}}, studies={"budgets": {}})
    study = load_params().studies.budgets
    assert study.at == [0.01, 0.02, 0.05, 0.1]
    assert {name: entry.model_dump() for name, entry in study.methods.items()} == {
        "tsv_c": METHODS["tsv_c"],
        "small": {"method": "svd", "reads": "svd"},
        "emr": FITTED["emr"],
    }


MISTAKES = [
    ({"at": []}, r"at: there are none"),
    ({"at": [0.0]}, r"at\.0: .*greater than 0"),
    ({"at": [0.1, 0.1]}, r"at: expected different shares"),
    ({"methods": {"x": {"method": "average", "reads": "deltas"}}}, r"methods\.x: average keeps no part per task"),
    ({"methods": {"x": FITTED["svd"] | {"ratio": 0.1}}}, r"methods\.x\.ratio: is decided by the bytes"),
    ({"methods": {"x": {"method": "smile", "reads": "svd"}}}, r"methods\.x: smile puts something into the network"),
    ({"methods": {"a/b": FITTED["svd"]}}, r"methods\.a/b: not a name"),
]


@each("mistake", MISTAKES)
def test_a_mistake_in_budgets_is_named(folder: Path, mistake: tuple[dict[str, Any], str]) -> None:
    changes, said = mistake
    change(studies={"budgets": {"at": AT, "methods": FITTED} | changes})
    with pytest.raises(InputError, match=rf"studies\.budgets\.{said}"):
        load_params()
