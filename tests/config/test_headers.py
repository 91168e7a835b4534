"""What is wrong with the declared models is said before any work, from their headers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Array3D, ClassLabel, Dataset, DatasetDict, Features, Value
from torch import Tensor

from merganser.checkpoints.writing import save_tensors
from merganser.config.headers import check_sources
from merganser.config.mistakes import MistakesError
from merganser.config.params import Params
from merganser.config.sections import Data, Entry
from merganser.config.tasks import task_mistakes
from merganser.errors import InputError
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.small_models import random_state, write_models
from tests.tiny_clip import CONFIG

NAME = "blocks.0.mlp.c_fc.weight"


@pytest.fixture
def params(tmp_path: Path) -> Params:
    """Three tiny models around a base, on disk and declared."""
    write_models(tmp_path / "hub")
    (tmp_path / "hub/base/open_clip_config.json").write_text(json.dumps(CONFIG))
    tasks = ("task0", "task1", "task2")
    for task in tasks:
        saved_pictures().save_to_disk(tmp_path / "datasets" / task)
    return Params.model_validate(
        {
            "seed": 0,
            "base": {"source": "hub/base", "family": "open_clip"},
            "parameters": {"merged": ["*"], "matrices": "linear"},
            "tasks": {
                task: {"source": f"hub/{task}", "data": {"source": f"datasets/{task}", "templates": ["a {}."]}}
                for task in tasks
            },
            "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
            "joints": {},
            "differences": {},
            "methods": {"average": {"method": "average", "reads": "deltas"}},
            "evaluation": {"split": "test", "batch_size": 8},
            "studies": {"tasks": {"subsets": 1, "methods": {}}, "rank": {"fractions": []}},
        }
    )


def saved_pictures() -> DatasetDict:
    """Two pictures of two classes."""
    features = Features({"image": Array3D((2, 2, 3), "uint8"), "label": ClassLabel(names=["dark", "light"])})
    pictures = np.zeros((2, 2, 2, 3), dtype=np.uint8)
    return DatasetDict(test=Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features))


def test_a_pattern_of_layers_matches_what_is_merged(params: Params, tmp_path: Path) -> None:
    entry = Entry(method="ties", reads="deltas", layers={"blocks.0.*": {"density": 0.5}, "block.0": {"density": 0.1}})
    other = params.model_copy(update={"methods": {"ties": entry}})
    with pytest.raises(InputError, match=r"^methods\.ties: layers\.block\.0: matches the name of no parameter"):
        check_sources(other, tmp_path, lambda path: False)


def test_patterns_of_parameters_that_match_nothing_are_named_where_they_stand(params: Params, tmp_path: Path) -> None:
    def merging(*patterns: str) -> Params:
        return params.model_copy(update={"parameters": params.parameters.model_copy(update={"merged": patterns})})

    with pytest.raises(MistakesError) as caught:
        check_sources(merging("nothing.*"), tmp_path, nothing_is_made)
    (mistake,) = caught.value.mistakes
    assert mistake.place == ("parameters", "merged")
    assert str(mistake).startswith("parameters.merged: no parameter of the base matches ['nothing.*']; they begin")
    said = ["parameters.merged: 'nothing.*' matches no parameter"]
    assert check_sources(merging("blocks.*", "nothing.*"), tmp_path, nothing_is_made) == said
    headed = params.model_copy(update={"base": params.base.model_copy(update={"heads": [NAME, "haed.*"]})})
    assert check_sources(headed, tmp_path, nothing_is_made) == ["base.heads: 'haed.*' matches no parameter"]


def nothing_is_made(path: Path) -> bool:
    return False


def complaint(params: Params, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_sources(params, folder, nothing_is_made)
    return str(caught.value)


def test_a_base_of_another_family_is_refused(params: Params, tmp_path: Path) -> None:
    (tmp_path / "hub/base/open_clip_config.json").unlink()
    assert "base.source: " in complaint(params, tmp_path)
    assert "no open_clip_config.json, which models of the family open_clip need" in complaint(params, tmp_path)


def test_models_that_fit_pass_and_what_differs_beside_them_is_named(params: Params, tmp_path: Path) -> None:
    assert check_sources(params, tmp_path, nothing_is_made) == []
    config = tmp_path / "hub/task0/open_clip_config.json"
    content = json.loads((tmp_path / "hub/base/open_clip_config.json").read_text())
    content["model_cfg"]["vision_cfg"]["norm_kwargs"] = {"eps": 0.3}
    config.write_text(json.dumps(content))
    (said,) = check_sources(params, tmp_path, nothing_is_made)
    assert said.startswith("task0: its config.json has vision_cfg.norm_kwargs.eps 0.3 (the base None)")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop(NAME), [f"the parameter {NAME} is missing"]),
        (lambda state: state.update({NAME: torch.zeros(16, 9)}), [NAME, "[16, 9]", "[16, 8]"]),
        (lambda state: state.update(head=torch.zeros(3)), ["the parameter head is not in the base"]),
        (lambda state: [state.pop(name) for name in list(state)] and state.update(x=torch.zeros(2)), ["architecture"]),
    ],
)
def test_a_model_that_does_not_fit_the_base_is_named(
    change: Callable[[dict[str, Tensor]], object], said: list[str], params: Params, tmp_path: Path
) -> None:
    state = random_state(5)
    change(state)
    save_tensors(tmp_path / "hub/task1/model.safetensors", state)
    message = complaint(params, tmp_path)
    assert message.startswith("tasks.task1.source: ")
    assert len(message.splitlines()) == 1
    assert all(part in message for part in said), message


def test_a_truncated_file_is_named(params: Params, tmp_path: Path) -> None:
    path = tmp_path / "hub/task2/model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    message = complaint(params, tmp_path)
    assert message.startswith(f"tasks.task2.source: {path}: truncated")


def test_every_bad_model_is_named_at_once(params: Params, tmp_path: Path) -> None:
    for task in ("task0", "task2"):
        (tmp_path / "hub" / task / "model.safetensors").write_bytes(b"\x08\0")
    assert [line.split(": ")[0] for line in complaint(params, tmp_path).splitlines()] == [
        "tasks.task0.source",
        "tasks.task2.source",
    ]


def test_a_source_that_no_stage_makes_is_refused_and_one_that_a_stage_makes_is_awaited(
    params: Params, tmp_path: Path
) -> None:
    (tmp_path / "hub/task0/model.safetensors").unlink()
    (tmp_path / "hub/task0").rmdir()
    assert "tasks.task0.source: " in complaint(params, tmp_path)
    assert "no stage makes it" in complaint(params, tmp_path)
    check_sources(params, tmp_path, lambda path: path == tmp_path / "hub/task0")


def test_a_pointer_to_something_remote_is_read_but_not_followed(params: Params, tmp_path: Path) -> None:
    pointer = tmp_path / "there.yaml"
    tasks = params.tasks | {"task1": params.tasks["task1"].model_copy(update={"source": "there.yaml"})}
    pointed = params.model_copy(update={"tasks": tasks})
    pointer.write_text(f"hub: some/model\nrevision: {'0a' * 20}\n")
    check_sources(pointed, tmp_path, nothing_is_made)
    pointer.write_text("hub: some/model\nrevision: main\n")
    assert complaint(pointed, tmp_path).startswith("tasks.task1.source: ")
    assert "main" in complaint(pointed, tmp_path)


def test_a_group_of_data_sets_is_held_to_the_pointer_that_names_it(params: Params, tmp_path: Path) -> None:
    pointer, commit = tmp_path / "data.yaml", "0a" * 20
    pointer.write_text(
        f"group: {{a: {{hub: some/data, revision: {commit}}}, b: {{hub: more/data, revision: {commit}}}}}"
    )
    named = {"source": "data.yaml", "group": {"a": {"doc_to_text": "x"}, "b": {"doc_to_text": "y"}}}
    check_sources(with_data(params, **named), tmp_path, nothing_is_made)
    named["group"].pop("b")
    said = f"tasks.task0.data.group: has a, and {pointer} names a, b; name the same"
    assert complaint(with_data(params, **named), tmp_path) == said
    pointer.write_text(f"{{hub: some/data, revision: {commit}}}")
    assert complaint(with_data(params, **named), tmp_path).endswith("names no group; name the same")
    pointer.write_text("group: {a: {hub: some/data}}")
    said = f"{pointer}: group.a: needs a revision, a full 40-digit commit, or a branch to follow"
    assert complaint(with_data(params, **named), tmp_path) == f"tasks.task0.data.source: {said}"


def without_base(params: Params) -> Params:
    return params.model_copy(update={"base": params.base.model_copy(update={"source": "data/checkpoints"})})


def test_models_without_a_base_are_compared_with_their_mean(params: Params, tmp_path: Path) -> None:
    check_sources(without_base(params), tmp_path, nothing_is_made)
    state = random_state(5) | {NAME: torch.zeros(16, 9)}
    save_tensors(tmp_path / "hub/task1/model.safetensors", state)
    message = complaint(without_base(params), tmp_path)
    assert message.startswith(f"base.source: task1: {NAME} has shape [16, 9], in task0 it has [16, 8]")


def test_a_merged_parameter_that_only_some_have_is_named_without_a_base_too(params: Params, tmp_path: Path) -> None:
    state = random_state(5)
    del state[NAME]
    save_tensors(tmp_path / "hub/task1/model.safetensors", state)
    assert complaint(without_base(params), tmp_path).startswith(f"tasks.task1.source: task1: the parameter {NAME} is")


def test_models_that_a_stage_has_yet_to_make_are_awaited_without_a_base_too(params: Params, tmp_path: Path) -> None:
    for task in params.tasks:
        (tmp_path / "hub" / task).rename(tmp_path / f"later-{task}")
    check_sources(without_base(params), tmp_path, lambda path: path.is_relative_to(tmp_path / "hub"))


def test_an_adapter_cannot_stand_without_its_base(params: Params, tmp_path: Path) -> None:
    write_base(tmp_path / "small")
    (tmp_path / "hub/task1/model.safetensors").unlink()
    write_adapter(tmp_path / "hub/task1", tmp_path / "small")
    assert "base.source: task1: " in complaint(without_base(params), tmp_path)
    assert "is an adapter, and the mean needs whole models; give the base" in complaint(without_base(params), tmp_path)


def with_data(params: Params, **keys: Any) -> Params:
    """Return the declaration with other keys of the first task's data."""
    task = params.tasks["task0"]
    data = Data.model_validate(task.data.model_dump() | keys)
    return params.model_copy(update={"tasks": params.tasks | {"task0": task.model_copy(update={"data": data})}})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"split": "tset"}, "tasks.task0.data.split: {} has no split 'tset'; it has test; did you mean \"test\"?"),
        (
            {"columns": {"image": "imgae"}},
            "tasks.task0.data: data.columns.image: split test of {} has no column 'imgae'; it has ['image', ",
        ),
        (
            {"columns": {"label": "image", "image": "label"}},
            "tasks.task0.data: {}: split test: the label column has no class names",
        ),
        ({"classes": ["a", "b", "c"]}, "tasks.task0.data: {}: split test has 2 classes, data.classes names 3"),
    ],
    ids=str,
)
def test_data_that_do_not_fit_are_refused_from_their_headers(
    keys: dict[str, Any], said: str, params: Params, tmp_path: Path
) -> None:
    found = complaint(with_data(params, **keys), tmp_path)
    assert found.startswith(said.format(tmp_path / "datasets/task0"))
    assert "\n" not in found


@pytest.mark.parametrize(
    "said", ["[", "{}", '{"features": {"label": {"_type": "ClassLabel"}}}', '{"features": {"label": 3}}']
)
def test_a_header_that_is_none_is_refused_by_its_file(said: str, params: Params, tmp_path: Path) -> None:
    header = tmp_path / "datasets/task0/test/dataset_info.json"
    header.write_text(said)
    assert complaint(params, tmp_path).startswith(f"tasks.task0.data: {header}: does not say the columns (")


def test_a_column_that_is_not_there_is_said_with_those_that_are(params: Params, tmp_path: Path) -> None:
    DatasetDict(test=saved_pictures()["test"].rename_column("label", "fine")).save_to_disk(tmp_path / "datasets/fine")
    found = complaint(with_data(params, source="datasets/fine"), tmp_path)
    advice = "the data has the columns image, fine; set data.columns, as in columns: {label: fine}"
    assert f"split test has no column 'label'; {advice}" in found


def test_columns_may_have_other_names_and_what_no_stage_reads_is_not_looked_at(params: Params, tmp_path: Path) -> None:
    folder = tmp_path / "datasets/task0"
    renamed = saved_pictures()["test"].rename_column("label", "fine_label")
    shutil.rmtree(folder)
    DatasetDict(test=renamed.add_column("note", ["", ""])).save_to_disk(folder)
    check_sources(with_data(params, columns={"label": "fine_label"}), tmp_path, nothing_is_made)


def test_a_folder_that_is_no_data_set_and_one_of_texts_are_refused_together(params: Params, tmp_path: Path) -> None:
    for task in ("task0", "task1"):
        shutil.rmtree(tmp_path / "datasets" / task)
    (tmp_path / "datasets/task0").mkdir()
    texts = Dataset.from_dict(
        {"image": ["a"], "label": ["b"]}, features=Features(image=Value("string"), label=Value("string"))
    )
    DatasetDict(test=texts).save_to_disk(tmp_path / "datasets/task1")
    first, second = complaint(params, tmp_path).splitlines()
    assert first.startswith("tasks.task0.data: ")
    assert "no saved data set" in first
    assert second.startswith("tasks.task1.data: ")
    assert "the label column has no class names" in second


def test_a_family_and_a_kind_of_task_that_do_not_fit_are_refused(params: Params) -> None:
    regression = params.tasks["task0"].model_copy(update={"kind": "regression"})
    changed = params.model_copy(update={"tasks": params.tasks | {"task0": regression}})
    mistake = str(task_mistakes(changed)[0])
    assert mistake.startswith("tasks.task0.kind: the family open_clip does not support the kind of task regression; ")
    assert "it supports image_classification: name another" in mistake


def of_texts(params: Params, folder: Path, names: dict[str, list[str]], head: list[str]) -> Params:
    """Make the first task one of texts, whose splits have classes of these names, and a head of others."""
    splits = {
        split: Dataset.from_dict(
            {"text": ["a", "b"], "label": [0, 1]},
            features=Features({"text": Value("string"), "label": ClassLabel(names=own)}),
        )
        for split, own in names.items()
    }
    DatasetDict(splits).save_to_disk(folder / "datasets/texts")
    (folder / "hub/task0/config.json").write_text(json.dumps({"id2label": dict(enumerate(head))}))
    task = params.tasks["task0"].model_copy(
        update={"kind": "text_classification", "data": Data(source="datasets/texts")}
    )
    base = params.base.model_copy(update={"family": "encoder", "heads": ["classifier.*"]})
    return params.model_copy(update={"base": base, "tasks": {"task0": task}})


@pytest.mark.parametrize(
    ("names", "head", "message"),
    [
        ({"test": ["no", "yes"]}, ["yes", "no"], r"tasks\.task0: the head has in another order: yes, no; the data has"),
        ({"test": ["no", "yes"]}, ["no", "maybe", "yes"], r"the head has 3 outputs, .* 2 classes .*; set data\.masked"),
        ({"test": ["no", "yes"]}, ["yes"], "the head has 1 outputs, .* 2 classes .*; name another model"),
        (
            {"train": ["no", "yes"], "test": ["yes", "no"]},
            ["no", "yes"],
            "the classes are yes, no in the split test, and no, yes in train; cast the label columns",
        ),
    ],
)
def test_a_head_and_data_of_other_classes_are_refused_before_any_work(
    names: dict[str, list[str]], head: list[str], message: str, params: Params, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        check_sources(of_texts(params, tmp_path, names, head), tmp_path, lambda source: False)


def test_a_kind_without_a_head_of_its_outputs_is_refused_before_any_work(params: Params, tmp_path: Path) -> None:
    two = of_texts(params, tmp_path, {"test": ["no", "yes"]}, [])
    none = two.model_copy(update={"base": two.base.model_copy(update={"family": "causal", "heads": []})})
    words = r"choose a kind that answers in words \(causal does language_model, text_generation\)"
    with pytest.raises(InputError, match=rf"0\.kind: text_classification needs a head, and the base has none; {words}"):
        check_sources(none, tmp_path, lambda source: False)
    with pytest.raises(InputError, match="needs a head, and the task's model has no parameter like classifier"):
        check_sources(two, tmp_path, lambda source: False)
    head = {"classifier.weight": torch.ones(3, 4), "classifier.bias": torch.ones(3)}
    save_tensors(tmp_path / "hub/task0/model.safetensors", head)
    with pytest.raises(InputError, match=r"of 2 outputs, and its parameters have the shapes \[3\], \[3, 4\]; name ano"):
        check_sources(two, tmp_path, lambda source: False)
    DatasetDict(test=Dataset.from_dict({"text": ["a"], "label": [0.5]})).save_to_disk(tmp_path / "datasets/numbers")
    numbers = two.tasks["task0"].model_copy(update={"kind": "regression", "data": Data(source="datasets/numbers")})
    with pytest.raises(InputError, match=r"task0\.kind: regression needs a head of 1 output, .* \[3, 4\]"):
        check_sources(two.model_copy(update={"tasks": {"task0": numbers}}), tmp_path, lambda source: False)


def test_the_split_that_is_measured_on_is_not_shown(params: Params) -> None:
    task = {"output_type": "multiple_choice", "doc_to_text": "{{a}}", "doc_to_choice": "b", "doc_to_target": "c"}
    data = Data.model_validate(
        {"source": "d", "metric": "acc", "task": task, "num_fewshot": 1, "fewshot_split": "test"}
    )
    shown = params.tasks["task0"].model_copy(update={"kind": "language_model", "data": data})
    base = params.base.model_copy(update={"family": "causal"})
    found = task_mistakes(params.model_copy(update={"base": base, "tasks": {"task0": shown}}))
    assert [str(mistake.text) for mistake in found] == ["'test' is the split that is measured on; name another"]
