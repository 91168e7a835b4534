"""The stage of ablations, on the tiny comparison, and what the report makes of them."""

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
from merganser.evaluation.examples import read_results
from merganser.measures.significance import holm
from merganser.report.comparison import Comparison
from merganser.report.sections import study_ablations as report_of_ablations
from merganser.tasks import evaluate, join, merge, prepare_validation, search, stages
from merganser.tasks.stages import POINTS
from tests.support import each
from tests.tasks.comparison import METHODS, TASKS, inside, measure_points, open_comparison, plots_of, write_sections

SCALINGS = {"scaling": [0.5, 1.5]}
ABLATIONS: dict[str, dict[str, Any]] = {
    "tsv": {
        "method": "tsv_m",
        "reads": "svd",
        "over": SCALINGS,
        "steps": {"overlapping": {"orthogonalise": False}, "whole_rank": {"rank_fraction": 1.0, "scaling": 0.7}},
    },
    "drm": {"method": "drm_h", "reads": "joints/rows", "over": {}, "steps": {"no_election": {"elect": False}}},
}
# as an entry, the ablation's step without orthogonalisation
SEARCH = {"method": "tsv_m", "of": "svd", "over": SCALINGS, "orthogonalise": False}
ENTRIES = {
    "found": {"method": "tsv_m", "reads": "searches/overlapping"},
    "drm": {"method": "drm_h", "reads": "joints/rows", "elect": False},
}


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison whose ablations are done, with steps of theirs as entries."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("ablations") / "comparison"))
    with inside(folder):
        params = yaml.safe_load(Path("params.yaml").read_text())
        params |= {"joints": {"rows": {"side": "rows"}}, "searches": {"overlapping": SEARCH}}
        write_params(params | {"methods": METHODS | ENTRIES, "studies": {"ablations": ABLATIONS}})
        join.main(["rows"])
        for task in TASKS:
            prepare_validation.main([task, "split"])
        measure_points()
        search.main(["overlapping"])
        for entry in ENTRIES:
            merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
    return folder


def write_params(content: dict[str, Any]) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def change(name: str, **changes: Any) -> None:
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["studies"]["ablations"][name] |= changes
    write_params(content)


def found(folder: Path, name: str, step: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((place(folder, name, step) / SCORES).read_text())
    return content


def place(folder: Path, name: str, step: str) -> Path:
    return folder / POINTS / Points(load_params(folder / "params.yaml")).ablation(name)[step].folder


@pytest.mark.parametrize(("name", "step", "entry"), [("tsv", "overlapping", "found"), ("drm", "no_election", "drm")])
def test_a_step_scores_as_the_entry_that_a_search_of_its_own_would_make(
    made: Path, name: str, step: str, entry: str
) -> None:
    for task in TASKS:
        assert found(made, name, step)["scores"][task] == json.loads(
            (made / f"data/metrics/{entry}/{task}.json").read_text()
        )
        own = read_results(place(made, name, step) / f"{task}.safetensors")
        expected = read_results(made / f"data/examples/{entry}/{task}.safetensors")
        assert own.prediction is not None
        assert expected.prediction is not None
        assert own.prediction.tolist() == expected.prediction.tolist()


def test_each_step_is_searched_anew_but_for_what_it_sets(made: Path) -> None:
    searched = json.loads((made / "data/searches/overlapping/result/search.json").read_text())
    step = found(made, "tsv", "overlapping")
    assert step["candidates"] == searched["candidates"]
    assert step["values"] == searched["chosen"]
    assert [one["values"] for one in found(made, "tsv", "whole")["candidates"]] == [{"scaling": 0.5}, {"scaling": 1.5}]
    assert found(made, "tsv", "whole_rank")["values"] == {"rank_fraction": 1.0, "scaling": 0.7}
    assert "candidates" not in {*found(made, "tsv", "whole_rank"), *found(made, "drm", "whole")}


def test_a_step_that_goes_takes_no_other_along(folder: Path) -> None:
    assert not measure_points()
    change("tsv", steps={"overlapping": {"orthogonalise": False}})
    assert not measure_points()
    change("tsv", over={"scaling": [0.5, 1.5, 1.0]})
    points = Points(load_params()).by_id
    assert [bool(points[name].tried) for name in measure_points()] == [False, True, False, True]


def test_the_report_tests_each_step_against_the_whole_and_the_one_above(made: Path, tmp_path: Path) -> None:
    with inside(made):
        comparison = open_comparison()
        tsv, drm = comparison.of(report_of_ablations.read)
        drawn = plots_of(comparison, "study_ablations")
    assert [step.name for step in tsv.steps] == ["whole", "overlapping", "whole_rank"]
    assert (tsv.steps[0].whole, tsv.steps[0].above) == (None, None)
    assert (tsv.steps[2].changed, tsv.steps[2].chosen, tsv.steps[2].tried) == (
        {"rank_fraction": 1.0, "scaling": 0.7},
        {},
        1,
    )
    for step, other in ((1, 0), (2, 1)):
        compared = tsv.steps[step].above
        assert compared is not None
        assert compared.difference == pytest.approx(tsv.steps[step].mean - tsv.steps[other].mean)
    corrected = [step.whole.corrected for step in tsv.steps[1:] if step.whole]
    assert corrected == holm(np.array([step.whole.p for step in tsv.steps[1:] if step.whole])).tolist()
    write_sections(tmp_path, comparison, "study_ablations")
    rows = list(csv.DictReader((tmp_path / "plots/study_ablations.csv").open()))
    assert [(row["ablation"], row["step"], row["changed"]) for row in rows][:3] == [
        ("tsv", "whole", ""),
        ("tsv", "overlapping", "orthogonalise: false"),
        ("tsv", "whole_rank", "rank_fraction: 1.0, scaling: 0.7"),
    ]
    assert float(rows[-1]["whole_p"]) == pytest.approx(drm.steps[1].whole.p if drm.steps[1].whole else None)
    assert set(drawn) == {"study_ablation-tsv", "study_ablation-drm"}


def test_steps_are_paired_example_by_example(folder: Path) -> None:
    def right(step: str) -> Any:
        return read_results(place(folder, "tsv", step) / "red.safetensors").score

    params, one, other = load_params(), right("overlapping"), right("whole")
    wins, losses = (one * (1 - other)).sum(), (other * (1 - one)).sum()
    only = params.model_copy(update={"tasks": {"red": params.tasks["red"]}})
    for name in ABLATIONS:
        for step, point in Points(only).ablation(name).items():
            shutil.copytree(place(folder, name, step), POINTS / point.folder)
    ablations = report_of_ablations.read(Comparison(only, stages))
    assert ablations
    whole = ablations[0].steps[1].whole
    assert whole is not None
    assert whole.difference == pytest.approx((wins - losses) / len(one))
    assert (whole.p < 1) == (abs(wins - losses) > 1)  # by one example, it is chance
    assert whole.over_tasks is None


MISTAKES = [
    ({"steps": {}}, r"steps: there are none"),
    ({"steps": {"a/b": {"elect": False}}}, r"steps\.a/b: not a name"),
    ({"steps": {"whole": {"orthogonalise": False}}}, r"steps\.whole: is the name of the entry itself"),
    ({"steps": {"none": {}}}, r"steps\.none: changes nothing; name the parameters"),
    ({"steps": {"x": {"ortho": False}}}, r"steps\.x\.ortho: tsv_m has no such parameter"),
    ({"steps": {"x": {"rank_fraction": 2}}}, r"steps\.x\.rank_fraction: "),
    ({"over": {"scaling": []}}, r"over\.scaling: expected different values"),
    ({"scaling": 1.0}, r"scaling: is under over too"),
    ({"reads": "joints/rows"}, r"reads: "),
]


@each("mistake", MISTAKES)
def test_a_mistake_in_an_ablation_is_named(folder: Path, mistake: tuple[dict[str, Any], str]) -> None:
    changes, said = mistake
    before = Path("params.yaml").read_text()
    change("tsv", **changes)
    with pytest.raises(InputError, match=rf"studies\.ablations\.tsv\.{said}"):
        load_params()
    Path("params.yaml").write_text(before)


def test_an_ablation_reads_a_validation_split_that_is_not_measured_on(folder: Path) -> None:
    before = yaml.safe_load(Path("params.yaml").read_text())
    write_params(before | {"validation": {"split": "test"}})
    with pytest.raises(InputError, match=r"validation\.split: 'test' is the split that dark is measured on"):
        load_params()
    del before["validation"], before["searches"], before["methods"]["found"]
    write_params(before)
    assert load_params().validation is not None
