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
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.evaluation.scoring import Score
from merganser.measures.significance import holm
from merganser.report.comparison import Comparison
from merganser.report.sections import study_ablations as report_of_ablations
from merganser.tasks import evaluate, join, merge, prepare_validation, search, stages, study_ablations
from merganser.tasks.studied import Studied
from tests.support import each
from tests.tasks.comparison import METHODS, TASKS, inside, open_comparison, plots_of, write_sections

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
        search.main(["overlapping"])
        for entry in ENTRIES:
            merge.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
        for name in ABLATIONS:
            study_ablations.main([name])
    return folder


def write_params(content: dict[str, Any]) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def change(name: str, **changes: Any) -> None:
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["studies"]["ablations"][name] |= changes
    write_params(content)


def found(folder: Path, name: str, step: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"data/measures/studies/ablations/{name}/{step}.json").read_text())
    return content


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "step", "entry"), [("tsv", "overlapping", "found"), ("drm", "no_election", "drm")])
def test_a_step_scores_as_the_entry_that_a_search_of_its_own_would_make(
    made: Path, name: str, step: str, entry: str
) -> None:
    for task in TASKS:
        assert found(made, name, step)["scores"][task] == json.loads(
            (made / f"data/metrics/{entry}/{task}.json").read_text()
        )
        own = read_results(made / f"data/measures/studies/ablations/{name}/{step}/{task}.safetensors")
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
    assert found(made, "tsv", "whole_rank")["candidates"] == found(made, "drm", "whole")["candidates"] == []


def test_a_second_start_merges_nothing_and_keeps_every_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "data/measures/studies/ablations/tsv"
    before = content(out)
    monkeypatch.setattr("merganser.studies.merges.merge_layers", None)
    study_ablations.main(["tsv"])
    assert content(out) == before
    change("tsv", steps={"overlapping": {"orthogonalise": False}})
    study_ablations.main(["tsv"])
    kept = {name: each for name, each in content(out).items() if "whole_rank" not in name}
    assert kept == {name: each for name, each in before.items() if "whole_rank" not in name}
    assert len(kept) == len(content(out)) == len(before) - 4


def test_a_stage_that_is_stopped_loses_no_merge_that_was_measured(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "data/measures/studies/ablations/tsv"
    shutil.rmtree(out)
    whole = study_ablations.measure_ablation

    def stopped(studied: Studied, values: dict[str, Any], own: Path, fingerprint: str) -> dict[str, Score]:
        if own.name == "overlapping":
            raise KeyboardInterrupt
        return whole(studied, values, own, fingerprint)

    monkeypatch.setattr(study_ablations, "measure_ablation", stopped)
    with pytest.raises(KeyboardInterrupt):
        study_ablations.main(["tsv"])
    monkeypatch.undo()
    assert {"whole.json", *(f"whole/{task}.safetensors" for task in TASKS)} < set(content(out))
    for left in (out, out / "state"):  # by a kill, in the midst of a merge
        (left / "tmp1").mkdir()
        (left / "tmp1/model.safetensors").write_text("half")
    monkeypatch.setattr("merganser.tasks.search.score_merge", None)  # all candidates of both steps were measured
    study_ablations.main(["tsv"])
    assert content(out) == content(made / "data/measures/studies/ablations/tsv")


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
        assert compared.difference == pytest.approx(tsv.steps[step].score - tsv.steps[other].score)
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
        return read_results(Path(f"data/measures/studies/ablations/tsv/{step}/red.safetensors")).score

    params, one, other = load_params(), right("overlapping"), right("whole")
    wins, losses = (one * (1 - other)).sum(), (other * (1 - one)).sum()
    only = params.model_copy(update={"tasks": {"red": params.tasks["red"]}})
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
