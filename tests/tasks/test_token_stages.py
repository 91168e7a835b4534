"""Encoders with a head for each token, from sources to the scores of a plain loop of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import DatasetDict, concatenate_datasets
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from merganser.config.headers import check_sources
from merganser.config.loading import load_params
from merganser.config.tasks import task_mistakes
from merganser.evaluation.metrics import squad_f1
from tests.evaluation.kinds import test_question_answering as questions
from tests.evaluation.kinds import test_token_classification as words
from tests.tasks.comparison import inside, run_declared
from tests.tiny_transformers import random_model, write_model

TASKS = ("one", "other")
FAMILIES = {
    "token_classifier": (AutoModelForTokenClassification, 5, "token_classification", "classifier"),
    "reader": (AutoModelForQuestionAnswering, 2, "question_answering", "qa_outputs"),
}


def data_set(family: str) -> DatasetDict:
    """Return data whose columns say the kind of task."""
    made = words.data_set() if family == "token_classifier" else questions.data_set()
    return DatasetDict(test=made["test"], validation=concatenate_datasets([made["test"]]).select(range(6)))


def write_sources(folder: Path, family: str) -> None:
    """Write a headless trunk, models fine-tuned from it with their own heads, and data."""
    make, outputs, _, _ = FAMILIES[family]
    trunk = random_model("bert", outputs, make=make.from_config).base_model
    for seed, task in enumerate(TASKS):
        model = write_model(folder / task, "bert", outputs, seed=seed + 1, make=make.from_config)
        model.base_model.load_state_dict(trunk.state_dict())
        torch.manual_seed(seed)
        with torch.no_grad():
            for value in model.base_model.parameters():
                value.add_(0.1 * torch.randn_like(value))
        if family == "token_classifier":
            model.config.id2label = dict(enumerate(words.TAGS))
        model.save_pretrained(folder / task)
        data_set(family).save_to_disk(folder / f"{task}-data")
    base = AutoModel.from_config(trunk.config)  # with the pooler that the tasks' models lack
    base.load_state_dict(trunk.state_dict(), strict=False)
    base.save_pretrained(folder / "base")
    AutoTokenizer.from_pretrained(folder / "one").save_pretrained(folder / "base")


@pytest.fixture(scope="module", params=list(FAMILIES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Run the stages on tasks of which params.yaml says no more than where models and data lie."""
    family, folder = request.param, tmp_path_factory.mktemp("tokens")
    write_sources(folder / "sources", family)
    own = {"max_length": 30} | ({"stride": 4} if family == "reader" else {})
    params = {
        "tasks": {
            task: {"source": f"sources/{task}", "data": {"source": f"sources/{task}-data", **own}} for task in TASKS
        },
        "parameters": {"merged": ["embeddings.*", "encoder.*"], "matrices": "linear"},
        "statistics": {"gram": {"kind": "gram"}},
        "methods": {"individual": {}, "average": {}, "regmean": {"reads": "statistics/gram"}},
    }
    run_declared(folder, TASKS, params)
    return family, folder


@pytest.fixture
def family(made: tuple[str, Path]) -> Iterator[str]:
    with inside(made[1]):
        yield made[0]


def test_family_kind_and_heads_follow_from_the_files(family: str) -> None:
    params = load_params()
    _, _, kind, head = FAMILIES[family]
    assert (params.base.family, params.base.heads) == (family, [f"{head}.*"])
    assert {task.kind for task in params.tasks.values()} == {kind}
    assert not task_mistakes(params)
    check_sources(params, Path(), lambda path: False)


def expected(family: str, model: Any, task: str) -> float:
    """Score a model by a plain loop of transformers."""
    model.eval().save_pretrained("scored")
    AutoTokenizer.from_pretrained(f"sources/{task}").save_pretrained("scored")
    data = data_set(family)
    if family == "reader":
        found = questions.expected(Path("scored"), data, 30, max_length=30, stride=4)
        return float(squad_f1(found, [each["text"] for each in data["test"]["answers"]]).mean())
    counts = np.zeros(3)
    for row, given in zip(words.answers(Path("scored"), data["test"]["tokens"]), data["test"]["label"], strict=True):
        ours, theirs = (words.conlleval([words.TAGS[n] for n in each]) for each in (row, given))
        counts += [len(ours & theirs), len(ours), len(theirs)]
    return float(2 * counts[0] / (counts[1] + counts[2]))


@pytest.mark.parametrize("entry", ["individual", "average", "regmean"])
def test_a_merge_under_a_tasks_head_scores_as_transformers_itself_does(family: str, entry: str) -> None:
    for task in TASKS:
        model = FAMILIES[family][0].from_pretrained(f"sources/{task}")
        if entry != "individual":
            trunk = AutoModel.from_pretrained(f"data/merged/{entry}")
            assert not model.base_model.load_state_dict(trunk.state_dict(), strict=False).missing_keys
        score = json.loads(Path(f"data/metrics/{entry}/{task}.json").read_text())
        assert score["value"] == expected(family, model, task)
        assert score["stderr"] is not None
