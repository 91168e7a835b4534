"""The study of tasks that are merged one after another, on the tiny comparison."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import merganser
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.points import SCORES, Points
from merganser.errors import InputError
from merganser.evaluation.scoring import score_of
from merganser.report.sections import study_continual
from merganser.tasks.stages import METRICS, POINTS
from tests.tasks.comparison import TASKS, inside, measure_points, open_comparison, write_sections
from tests.tiny_clip import score_clip

STUDY = {"orders": 2, "methods": {"average": {"method": "average", "reads": "deltas"}, "opcm": {"reads": "deltas"}}}


def with_study(content: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """Return the params.yaml with this study of continual merging alone."""
    return content | {"studies": content["studies"] | {"continual": study}}


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison with the study done."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("continual") / "comparison"))
    params = folder / "params.yaml"
    study = STUDY | {"methods": {name: {"method": name} | entry for name, entry in STUDY["methods"].items()}}
    params.write_text(yaml.safe_dump(with_study(yaml.safe_load(params.read_text()), study), sort_keys=False))
    with inside(folder):
        measure_points()
    return folder


def scores(folder: Path, entry: str, order: int) -> list[dict[str, Any]]:
    """Read what the merges of an order scored."""
    points = Points(load_params(folder / "params.yaml")).continual(entry)[order]
    return [json.loads((folder / POINTS / point.folder / SCORES).read_text()) for point in points]


def test_each_merge_has_one_more_task(made: Path) -> None:
    for entry in STUDY["methods"]:
        orders = [[set(step["scores"]) for step in scores(made, entry, order)] for order in range(2)]
        for steps in orders:
            assert [len(step) for step in steps] == [1, 2, 3]
            assert all(before < after for before, after in pairwise(steps))
        assert orders[0] == [{"dark"}, {"dark", "light"}, set(TASKS)]
        assert orders[1] != orders[0]
    for task, found in scores(made, "average", 0)[0]["scores"].items():
        assert found == json.loads((made / METRICS / f"individual/{task}.json").read_text())


def test_a_merge_without_an_order_is_that_of_the_study_of_task_numbers(made: Path) -> None:
    points = Points(load_params(made / "params.yaml"))
    subsets = {point.id for point in points.task_study("average").values()}
    assert {point.id for order in points.continual("average") for point in order if len(point.tasks) == 3} <= subsets
    assert len({order[-1].id for order in points.continual("opcm")}) == 2


def test_a_method_that_takes_tasks_in_order_takes_them_in_this_one(made: Path) -> None:
    first, second = (scores(made, "opcm", order)[-1] for order in range(2))
    assert first["merge"] != second["merge"]
    named = {f"{place}": made / "data/checkpoints" / task for place, task in enumerate(second["tasks"])}
    merged = merganser.merge("opcm", made / "data/base", named, only=["visual.*"], threads=1)
    for task, found in second["scores"].items():
        results = score_clip(made / "data/base", merged.items(), made / "data/datasets" / task)
        assert {**score_of("accuracy", results), "device": "cpu"} == found


def test_backward_transfer_and_forgetting_are_those_of_their_papers(made: Path, tmp_path: Path) -> None:
    with inside(made):
        comparison = open_comparison()
        found = comparison.of(study_continual.read)
        write_sections(tmp_path, comparison, "study_continual", "studies")
        assert set(study_continual.plots(found, comparison.wording)) == {"study_continual"}
    for entry in STUDY["methods"]:
        measured = []
        for order in range(2):
            steps = [
                {task: one["value"] for task, one in step["scores"].items()} for step in scores(made, entry, order)
            ]
            tasks = [
                next(task for task in step if task not in before)
                for before, step in zip([{}, *steps], steps, strict=False)
            ]
            a = np.array([[step.get(task, np.nan) for task in tasks] for step in steps])
            last = len(tasks) - 1
            transfer = sum(a[last, i] - a[i, i] for i in range(last)) / last
            forgotten = sum(np.nanmax(a[:last, i]) - a[last, i] for i in range(last)) / last
            measured.append([a[last].mean(), transfer, forgotten])
        summary = found.summaries[entry].values()
        assert np.array([one.mean for one in summary]) == pytest.approx(np.mean(measured, axis=0))
        assert np.array([one.deviation for one in summary]) == pytest.approx(np.std(measured, axis=0, ddof=1))
    written = json.loads((tmp_path / "studies.json").read_text())["continual"]
    assert len(written["scores"]) == len((tmp_path / "plots/study_continual.csv").read_text().splitlines()) - 1 == 24


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: p["studies"]["continual"].update(orders=0), "studies.continual.orders: .* got 0"),
        (
            lambda p: p["studies"]["continual"]["methods"].update(drm_h={"method": "drm_h", "reads": "joints/rows"}),
            "studies.continual.methods.drm_h.reads: ",
        ),
        (
            lambda p: p["studies"]["continual"]["methods"].update(twin={"method": "twin", "reads": "deltas"}),
            "studies.continual.methods.twin",
        ),
    ],
)
def test_a_mistake_is_named(folder: Path, change: Callable[[dict[str, Any]], object], text: str) -> None:
    content = yaml.safe_load(Path("params.yaml").read_text())
    change(content)
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(InputError, match=text):
        load_params()


def test_a_single_task_has_a_mean_alone(folder: Path) -> None:
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["tasks"] = {"red": content["tasks"]["red"]}
    one = Points(Params.model_validate(content))
    assert [[point.tasks for point in order] for order in one.continual("opcm")] == [[("red",)]]
    alone = study_continual.Continual({"opcm": [study_continual.Sequential([{"red": 0.5}])]})
    assert alone.summaries == {"opcm": {"mean": (0.5, None)}}
