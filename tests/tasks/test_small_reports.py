"""Reports with little to draw: one task, one entry, and numbers that are zero, equal or missing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.report.curves import LineStyle, over_depth
from merganser.report.plots import plot_style
from merganser.report.sections.glance import against_memory, against_time
from merganser.tasks import evaluate, measure, measure_merged, merge, name_classes, record, report
from tests.report.test_plots import row

ONE = {"average": {"method": "average", "reads": "deltas"}}
DVC_YAML = Path(__file__).parents[2] / "dvc.yaml"
NAN = float("nan")


@pytest.mark.parametrize("methods", [ONE, {"base": {"method": "base", "reads": "deltas"}}])
def test_a_report_of_one_task_and_one_entry_is_written_with_its_plots(folder: Path, methods: dict[str, Any]) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    tasks = {"dark": params["tasks"]["dark"]}
    params |= {"tasks": tasks, "methods": methods, "studies": {"tasks": {"methods": {}}, "rank": {"fractions": []}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    measure.main([])
    name_classes.main([])
    for entry in methods:
        merge.main([entry])
        measure_merged.main([entry])
        evaluate.main([entry, "dark"])
        record.main([entry])
    report.main([])
    assert "<svg" in (folder / "report/index.html").read_text()
    plotted = {
        file for plot in yaml.safe_load(DVC_YAML.read_text())["plots"] for one in plot.values() for file in one["y"]
    }
    assert [file for file in plotted if not (folder / file).is_file()] == []
    assert (folder / "report/plots/study_rank.csv").read_text() == "task,fraction,score\n"


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [NAN, NAN], [1.0, 1.0], [0.5, NAN], [1e-9, 1e9], [0.0, 3.0], [-1.0, 2.0]]
)
def test_lines_over_depth_are_drawn_whatever_the_numbers_are(values: list[float]) -> None:
    names = [f"blocks.{number}.mlp.weight" for number in range(len(values))]
    with plot_style():
        assert "<svg" in over_depth(
            [(LineStyle("m", "m"), dict(zip(names, values, strict=True)))], names, "m", log=True
        )


@pytest.mark.parametrize("cost", [0.0, 1e-9, 1.0, 1e6])
@pytest.mark.parametrize("entries", [1, 3])
def test_scores_are_drawn_over_costs_of_zero_and_equal_ones(cost: float, entries: int) -> None:
    rows = [row(f"entry{number}", "average", 0.5, cost) for number in range(entries)]
    with plot_style():
        assert "<svg" in against_memory(rows)
        assert "<svg" in against_time(rows)
