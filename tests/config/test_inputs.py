"""The table of inputs agrees with params.yaml, with dvc.yaml, and with what a merge opens."""

import re
from pathlib import Path
from typing import Any, get_origin

import pytest
import yaml

from merganser import registry
from merganser.config.inputs import INPUTS, SECTIONS, input_of
from merganser.config.params import Params
from merganser.tasks.opening import OPENINGS
from tests.config.test_params import complaint, write
from tests.support import each
from tests.tiny import ROOT

DVC_YAML = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES: dict[str, dict[str, Any]] = {
    name: stage.get("do", stage) | {"over": stage.get("foreach") or stage.get("matrix")}
    for name, stage in DVC_YAML["stages"].items()
}
TASK = {"source": "hub/x", "data": {"source": "datasets/x", "templates": ["a {}."]}}
ONE_EACH = Params.model_validate(
    {
        "base": {"source": "hub/base", "family": "open_clip"},
        "tasks": {"dark": TASK, "light": TASK},
        "methods": {"average": {"method": "average", "reads": "deltas"}},
        "joints": {"x": {"side": "rows"}},
        "differences": {"x": {"merged": "average"}},
        "embeddings": {"x": {"of": "deltas"}},
        "routers": {"x": {"of": "deltas"}},
        "surgery": {"x": {"of": "differences/x"}},
        "learned": {"x": {"learner": "adamerging", "of": "deltas"}},
        "statistics": {"x": {"kind": "gram"}},
        "searches": {"x": {"method": "ties", "of": "deltas"}},
    }
)


def outputs(stage: dict[str, Any]) -> list[str]:
    return [path for each in stage.get("outs", ()) for path in (each if isinstance(each, dict) else [each])]


def makers(name: str) -> set[str]:
    """The stages of dvc.yaml that write below an input's folder in `data/`."""
    below = f"data/{name}/"
    return {stage for stage, about in STAGES.items() if any(path.startswith(below) for path in outputs(about))}


def test_each_section_of_named_things_is_an_input_but_models_and_methods() -> None:
    named = {name for name, field in Params.model_fields.items() if get_origin(field.annotation) is dict}
    assert (
        named - {"tasks", "unseen", "methods", "vocabularies", "trial"}
        == set(SECTIONS)
        == {name for name, row in INPUTS.items() if row.declared(ONE_EACH)}
    )
    assert [name for name in INPUTS if name not in SECTIONS] == ["deltas", "svd"]


def test_each_section_may_be_left_out_of_what_dvc_reads() -> None:
    left_out = {name for given in DVC_YAML["vars"] for name in given}
    assert {*SECTIONS, "vocabularies"} <= left_out


def test_each_input_is_opened_by_a_merge() -> None:
    assert set(OPENINGS) == set(INPUTS)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"statistics": {"x": {"kind": "fisher"}}}, "but statistics.x needs class probabilities"),
        ({"embeddings": {"x": {"of": "deltas"}}}, "but embeddings.x embeds class names"),
        ({"statistics": {"x": {"kind": "gram"}}}, None),
    ],
)
def test_what_needs_classes_is_refused_of_a_task_without_before_any_work(
    section: dict[str, Any], words: str | None
) -> None:
    numbers = {"source": "hub/y", "kind": "regression", "data": {"source": "datasets/y"}}
    tasks = {"dark": {**numbers, "kind": "text_classification"}, "number": numbers}
    base = {"source": "hub/base", "family": "encoder"}
    params = Params.model_validate(ONE_EACH.model_dump(include={"methods"}) | {"base": base, "tasks": tasks} | section)
    found = [str(mistake) for each in INPUTS.values() for mistake in each.mistakes(params)]
    named = next(iter(section))
    expected = f"tasks.number.kind: regression has no classes, {words}; leave the task out, or {named}.x"
    assert found == ([] if words is None else [expected])


@each("name", INPUTS)
def test_an_input_is_made_and_reads_the_data_and_has_the_names_that_its_stages_have(name: str) -> None:
    made = [STAGES[stage] for stage in makers(name)]
    assert made
    read = {dep for stage in made for dep in stage["deps"]}
    data = any(dep.startswith("data/validation") for dep in read)
    assert INPUTS[name].validation == data
    assert INPUTS[name].by_task == any(isinstance(stage["over"], dict) for stage in made)


@each("name", registry.names())
def test_a_method_needs_at_most_one_input_beside_deltas_and_factors(name: str) -> None:
    """For its entries read one."""
    method = registry.get(name)
    needed = {row.name for row in INPUTS.values() if row.is_read_by(method)}
    assert needed - {"deltas", "svd", "differences"} <= {input_of(method).name}


def test_a_study_of_subsets_reads_no_values_that_a_search_chose_for_all_tasks(tmp_path: Path) -> None:
    content = ONE_EACH.model_dump(exclude={"validation", "published"}) | {"validation": {"split": "validation"}}
    entry = {"method": "ties", "reads": "searches/x"}
    content["studies"]["tasks"]["methods"] = {"tuned": entry}
    said = complaint(write(tmp_path, content))
    assert re.search(r"studies\.tasks\.methods\.tuned\.reads: searches/x chose .* take the entry out", said)
