"""The text suites' stages on a tiny configuration, run by the very commands of their dvc.yaml."""

from pathlib import Path

import pytest
import torch
import yaml
from datasets import ClassLabel, load_from_disk
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from common.stages import read_settings
from merganser.flows.suites.ready import load_suite
from tests.examples.stages import (
    EXAMPLES,
    REPOSITORY,
    build_elsewhere,
    code_of,
    declared_code,
    differing,
    make_folder,
    run_stage,
    stages_in,
    stages_of,
)
from texts.causal.model import encode, loss, prompt
from texts.drawing import draw
from texts.settings import Adapting, Settings
from texts.tasks import TASKS
from texts.tokenizer import causal_tokenizer

PAIRS = "entail"
TASKS_BUILT = (PAIRS, "count")
TINY = {
    "seed": 5,
    "tasks": list(TASKS),
    "data": {"train": 40, "validation": 12, "test": 15},
    "encoder": {
        "pretrain": {"steps": 3, "batch_size": 4, "texts": 20, "plain": 0.4},
        "finetune": {"steps": 3, "batch_size": 8, "learning_rate": 5.0e-4},
    },
    "causal": {
        "pretrain": {"steps": 3, "batch_size": 4, "texts": 20, "plain": 0.4},
        "adapt": {"steps": 3, "batch_size": 8, "learning_rate": 2.0e-3, "rank": 2},
    },
}
FOLDERS = {"texts": ("data",), "texts/encoder": ("pretrain", "finetune"), "texts/causal": ("pretrain", "adapt")}
STAGES = [(folder, name) for folder, names in FOLDERS.items() for name in names]


def build(folder: Path) -> None:
    """Run the stages' commands, one after the other, in the folder."""
    make_folder(folder, "texts", TINY)
    with stages_in(folder):
        for task in TASKS_BUILT:
            for suite, name in STAGES:
                if name != "pretrain" or task == TASKS_BUILT[0]:
                    run_stage(suite, name, task)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny suite."""
    folder = tmp_path_factory.mktemp("texts")
    build(folder)
    return folder / "texts"


def test_every_stage_writes_what_its_dvc_yaml_says(built: Path) -> None:
    for folder, name in STAGES:
        for out in stages_of(folder)[name]["outs"]:
            assert all((built.parent / out.replace("${item}", task)).is_dir() for task in TASKS_BUILT)


@pytest.mark.drill
def test_building_again_in_another_process_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_elsewhere("test_text_stages", tmp_path)
    assert differing(built, tmp_path / "texts") == []


@pytest.mark.parametrize(("folder", "name"), STAGES)
def test_a_stage_depends_on_all_the_code_it_runs(folder: str, name: str) -> None:
    assert declared_code(folder, name) == code_of("texts", f"{folder.replace('/', '.')}.{name}")


def test_a_saved_data_set_holds_what_was_drawn(built: Path) -> None:
    for task in TASKS_BUILT:
        for split, rows in load_from_disk(built / "datasets" / task).items():
            drawn = draw(task, split, TINY["seed"], TINY["data"][split])
            assert rows["text"] == [example.text for example in drawn]
            assert list(rows["label"]) == [example.answer for example in drawn]
    test = load_from_disk(built / "datasets" / PAIRS)["test"]
    assert test.features["label"] == ClassLabel(names=TASKS[PAIRS].ANSWERS)
    assert test["hypothesis"][0] == draw(PAIRS, "test", TINY["seed"], 1)[0].second


def test_transformers_opens_a_fine_tuned_encoder_whose_layers_alone_have_moved(built: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(built / "encoder/hub" / PAIRS)
    assert model.config.id2label == dict(enumerate(TASKS[PAIRS].ANSWERS))
    tuned, base = model.state_dict(), load_file(built / "encoder/hub/base/model.safetensors")
    head = load_file(built / "encoder/hub/heads" / f"{PAIRS}.safetensors")
    assert tuned.keys() == base.keys() | head.keys()
    moved = {name for name, value in tuned.items() if not torch.equal(value, (base | head)[name])}
    assert moved
    assert all(".layer." in name for name in moved)
    assert all(name in moved for name in base if ".layer." in name and base[name].ndim == 2)
    tokenizer = AutoTokenizer.from_pretrained(built / "encoder/hub" / PAIRS)
    assert tokenizer("all dogs run", "some dogs run").input_ids[0] == model.config.bos_token_id


def test_the_regression_answers_in_the_labels_own_numbers(built: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(built / "encoder/hub/count").eval()
    tokenizer = AutoTokenizer.from_pretrained(built / "encoder/hub/count")
    rows = load_from_disk(built / "datasets/count")["train"]
    with torch.no_grad():
        answers = model(**tokenizer(list(rows["text"]), padding=True, return_tensors="pt")).logits
    assert answers.shape == (40, 1)
    assert abs(answers.mean().item() - torch.tensor(rows["label"]).float().mean().item()) < 2


def test_peft_opens_an_adapter_on_the_base_and_merges_it(built: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(built / "causal/hub/base")
    before = {name: value.clone() for name, value in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, built / "causal/hub" / PAIRS).merge_and_unload().state_dict()
    moved = {name for name in before if not torch.equal(before[name], merged[name])}
    assert moved == {name for name in before if ".layers." in name and before[name].ndim == 2}
    assert sorted(path.name for path in (built / "causal/hub" / PAIRS).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_the_causal_loss_counts_the_answer_alone_where_the_text_weighs_nothing(built: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(built / "causal/hub/base")
    rows = encode(causal_tokenizer(), PAIRS, draw(PAIRS, "train", 0, 2))
    with torch.no_grad():
        answers = [model(torch.tensor([row])).logits[0, len(row) - 3].log_softmax(-1)[row[-2]].item() for row in rows]
        assert loss(model, rows, text_weight=0.0).item() == pytest.approx(-sum(answers) / 2, rel=1e-5)


def test_the_settings_are_those_of_the_file(tmp_path: Path) -> None:
    assert read_settings(EXAMPLES / "texts/params.yaml", Settings).tasks == list(TASKS)
    assert isinstance(read_settings(EXAMPLES / "texts/params.yaml", Settings).causal.adapt, Adapting)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({**TINY, "causal": {"pretrian": {}}}))
    with pytest.raises(TypeError, match="pretrian"):
        read_settings(tmp_path / "params.yaml", Settings)


@pytest.mark.parametrize("suite", ["encoder", "causal"])
def test_a_suite_compares_these_models_and_asks_as_they_were_trained(suite: str) -> None:
    tasks = load_suite(REPOSITORY, suite).tasks
    assert list(tasks) == list(TASKS)
    for name, task in tasks.items():
        assert task.source == f"examples/texts/{suite}/hub/{name}"
        assert task.data.source == f"examples/texts/datasets/{name}"
        if suite == "encoder":
            assert task.data.columns == ({"pair": TASKS[name].SECOND} if TASKS[name].SECOND else {})
        else:
            asked, second = task.data.values["task"], TASKS[name].SECOND
            assert asked["doc_to_text"] == prompt(name, "{{text}}", f"{{{{{second}}}}}" if second else None)
            assert asked["doc_to_choice"] == TASKS[name].ANSWERS
