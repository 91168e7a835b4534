"""The stage of sweeps, on the tiny comparison, and what the report makes of them."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.config.loading import load_params
from merganser.config.points import SCORES, Points
from merganser.errors import InputError
from merganser.report.sections import study_sweeps as report_of_sweeps
from merganser.tasks import difference, evaluate, extract_difference, join, merge
from merganser.tasks.stages import POINTS
from tests.support import each
from tests.tasks.comparison import METHODS, TASKS, inside, measure_points, open_comparison, plots_of, write_sections

SWEEPS: dict[str, dict[str, Any]] = {
    "scale": {"method": "task_arithmetic", "reads": "deltas", "over": {"scaling": [1.0, 0.25, 0.5]}},
    "joint": {"method": "drm_h", "reads": "joints/rows", "over": {"elect": [True, False]}, "density": 0.5},
    "from_average": {"method": "task_arithmetic", "reads": "differences/x", "over": {"scaling": [0.5]}},
}
ENTRIES = {
    "joint": {"method": "drm_h", "reads": "joints/rows", "density": 0.5, "elect": False},
    "from_average": {"method": "task_arithmetic", "reads": "differences/x", "scaling": 0.5},
}


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison whose sweeps are done, with two of their values as entries."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("sweeps") / "comparison"))
    with inside(folder):
        params = yaml.safe_load(Path("params.yaml").read_text())
        params |= {"joints": {"rows": {"side": "rows"}}, "differences": {"x": {"merged": "average"}}}
        write_params(params | {"methods": METHODS | ENTRIES, "studies": {"sweeps": SWEEPS}})
        join.main(["rows"])
        difference.main(["x"])
        for task in TASKS:
            extract_difference.main(["x", task])
        for entry in ENTRIES:
            merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
        measure_points()
    return folder


def write_params(content: dict[str, Any]) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def change(name: str, **changes: Any) -> None:
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["studies"]["sweeps"][name] |= changes
    write_params(content)


def scores(folder: Path, name: str) -> dict[str, Any]:
    """Read a sweep's scores by value."""
    points = Points(load_params(folder / "params.yaml")).sweep(name)
    files = {json.dumps(*values.values()): folder / POINTS / point.folder / SCORES for values, point in points}
    return {value: json.loads(file.read_text())["scores"] for value, file in files.items()}


@pytest.mark.parametrize(
    ("sweep", "value", "entry"),
    [("scale", "0.5", "sum"), ("joint", "false", "joint"), ("from_average", "0.5", "from_average")],
)
def test_a_value_scores_as_the_entry_that_has_it(made: Path, sweep: str, value: str, entry: str) -> None:
    for task in TASKS:
        expected = json.loads((made / f"data/metrics/{entry}/{task}.json").read_text())
        assert scores(made, sweep)[value][task] == expected


def test_only_values_that_are_new_are_measured(folder: Path) -> None:
    before = scores(folder, "scale")
    assert not measure_points()
    change("scale", over={"scaling": [0.5, 0.75]})
    assert len(measure_points()) == 1
    assert scores(folder, "scale")["0.5"] == before["0.5"]
    change("scale", coefficients={"red": 0.5})
    assert len(measure_points()) == 2


def test_the_report_has_a_curve_of_each_sweep_with_its_sampling_error(made: Path, tmp_path: Path) -> None:
    with inside(made):
        comparison = open_comparison()
        scale, joint, _ = comparison.of(report_of_sweeps.read)
        drawn = plots_of(comparison, "study_sweeps")
    assert [point.value for point in scale.points] == scale.places == [0.25, 0.5, 1.0]
    assert ([point.shown for point in joint.points], joint.places) == (["true", "false"], [0, 1])
    errors = [found["stderr"] for found in scores(made, "scale")["0.25"].values()]
    assert scale.points[0].error == pytest.approx(sum(error**2 for error in errors) ** 0.5 / 3)
    write_sections(tmp_path, comparison, "study_sweeps")
    rows = list(csv.DictReader((tmp_path / "plots/study_sweeps.csv").open()))
    assert [row["task"] for row in rows[:4]] == ["mean", *TASKS]
    assert float(rows[0]["score"]) == pytest.approx(sum(float(row["score"]) for row in rows[1:4]) / 3)
    assert set(drawn) == {"study_sweep-scale", "study_sweep-joint", "study_sweep-from_average"}
    assert "scaling of task_arithmetic" in drawn["study_sweep-scale"]


MISTAKES = [
    ({"over": {"scaling": [0.5], "coefficients": [None]}}, "over: expected one parameter .* coefficients; write"),
    ({"over": {}}, "over: expected one parameter with its values, got none"),
    ({"over": {"scaling": []}}, "over.scaling: expected different values, at least one"),
    ({"over": {"scaling": [1.0, 1.0]}}, "over.scaling: expected different values"),
    ({"scaling": 0.5}, "scaling: is under over too"),
    ({"over": {"scalng": [0.5]}}, 'scalng: .*did you mean "scaling"'),
    ({"over": {"scaling": ["much"]}}, "scaling: "),
    ({"reads": "svd"}, "reads: "),
    ({"method": "smile", "reads": "svd", "over": {"k": [16, 32]}}, "smile puts something into the network"),
]


@each("mistake", MISTAKES)
def test_a_mistake_in_a_sweep_is_named(folder: Path, mistake: tuple[dict[str, Any], str]) -> None:
    changes, said = mistake
    content = Path("params.yaml").read_text()
    change("scale", **changes)
    with pytest.raises(InputError, match=rf"studies\.sweeps\.scale[.:] ?{said}"):
        load_params()
    Path("params.yaml").write_text(content)
