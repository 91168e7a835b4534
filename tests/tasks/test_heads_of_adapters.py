"""A comparison of a decoder with LoRA adapters that each bring a head: the stages against PEFT's own classifiers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSequenceClassification

from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.evaluation.prepared import Prepared
from merganser.report.scores import read_metrics
from merganser.tasks import evaluate, extract, fetch, merge, prepare
from tests.miniatures.llama import OUTPUTS, classifier_adapter
from tests.tasks.comparison import inside
from tests.tiny_transformers import tokenizer, write_model

COUNT = 30
WORDS = ["cat", "dog", "mat", "red", "dark", "light", "yes", "no", "on"]
PAIRS = [(f"the {WORDS[i % 9]} {WORDS[i % 7]}", " ".join(WORDS[: 1 + i % 5])) for i in range(COUNT)]
# What each task's data set and its entry say of labels, and the outputs that are its classes.
TASKS: dict[str, tuple[list[Any], dict[str, Any], list[int]]] = {
    "three": ([i % 4 - 1 for i in range(COUNT)], {"classes": ["a", "b", "c"], "unlabelled": "drop"}, [0, 1, 2]),
    "first-and-last": ([i % 2 for i in range(COUNT)], {"classes": ["a", "not a"], "masked": [1]}, [0, 2]),
    "words": ([("neutral", "entails")[i % 2] for i in range(COUNT)], {"labels": ["entails", "neutral"]}, [0, 1]),
}
TASKS["words"][1]["masked"] = [2]
SPARE = "spare"  # merged, and not measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the stages on a tiny decoder without a head and adapters with theirs."""
    path = tmp_path_factory.mktemp("comparison")
    sources = path / "sources"
    write_model(sources / "base", "llama, untied")
    tasks = {}
    for seed, (task, (labels, own, _)) in enumerate(TASKS.items()):
        rows = [{"one": one, "two": two, "label": label} for (one, two), label in zip(PAIRS, labels, strict=True)]
        DatasetDict({"test": Dataset.from_list(rows)}).save_to_disk(sources / f"{task}-data")
        classifier_adapter(sources / "base", seed).save_pretrained(sources / task)
        data = {"source": f"sources/{task}-data", "columns": {"text": "one", "pair": "two"}, **own}
        tasks[task] = {"source": f"sources/{task}", "kind": "text_classification", "data": data}
    classifier_adapter(sources / "base", len(TASKS)).save_pretrained(sources / SPARE)
    tasks[SPARE] = {"source": f"sources/{SPARE}", "kind": "unmeasured"}
    methods = {name: {"method": name, "reads": "deltas"} for name in ("task_arithmetic", "individual")}
    params = {
        "base": {"source": "sources/base", "family": "causal", "heads": ["score.*"]},
        "parameters": {"merged": ["model.layers.*"]},
        "tasks": tasks,
        "methods": methods | {"task_arithmetic": methods["task_arithmetic"] | {"scaling": 0.5}},
        "evaluation": {"split": "test", "batch_size": 8},
    }
    (path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with inside(path):
        fetch.main(["base"])
        for task in tasks:
            fetch.main(["task", task])
            fetch.main(["data", task])
            extract.main([task])
            prepare.main([task])
        for entry in methods:
            merge.main([entry])
            for task in tasks:
                evaluate.main([entry, task])
    return path


def logits(model: Any) -> np.ndarray:
    """Run a classifier on each pair alone: nothing is padded."""
    encode = tokenizer(ends=False)
    model = model.eval()
    with torch.inference_mode():
        return np.stack([model(**encode(*pair, return_tensors="pt")).logits[0].numpy() for pair in PAIRS])


@pytest.mark.parametrize("task", TASKS)
def test_each_adapter_with_its_head_scores_as_in_peft(folder: Path, task: str) -> None:
    labels, own, outputs = TASKS[task]
    kept = [number for number, label in enumerate(labels) if label != -1]
    number = {word: place for place, word in enumerate(own.get("labels", range(3)))}
    expected = logits(classifier_adapter(folder / "sources/base", list(TASKS).index(task)))[:, outputs].argmax(1)[kept]
    found = read_results(folder / f"data/examples/individual/{task}.safetensors")
    assert found.label is not None
    assert found.prediction is not None
    assert found.label.tolist() == [number[labels[place]] for place in kept]
    assert found.prediction.tolist() == expected.tolist()
    assert len(set(expected)) > 1


def test_a_merge_has_each_tasks_own_head(folder: Path) -> None:
    for number, (task, (labels, _, outputs)) in enumerate(TASKS.items()):
        own = [classifier_adapter(folder / "sources/base", seed).merge_and_unload() for seed in range(len(TASKS) + 1)]
        base = AutoModelForSequenceClassification.from_pretrained(folder / "sources/base", num_labels=OUTPUTS)
        start = {name: value.clone() for name, value in base.state_dict().items()}
        for name, value in base.state_dict().items():
            if not name.startswith("score"):
                value += 0.5 * sum(model.state_dict()[name] - start[name] for model in own)
        base.score.weight.data = own[number].score.weight.data
        kept = [place for place, label in enumerate(labels) if label != -1]
        found = read_results(folder / f"data/examples/task_arithmetic/{task}.safetensors")
        assert found.prediction is not None
        assert found.prediction.tolist() == logits(base)[:, outputs].argmax(1)[kept].tolist()


def test_a_task_without_data_is_merged_and_in_no_score(folder: Path) -> None:
    params = load_params(folder / "params.yaml")
    assert list(params.tasks) == [*TASKS, SPARE]
    assert params.measured == list(TASKS)
    assert list(read_metrics(params.measured, folder / "data/metrics/individual")) == list(TASKS)
    assert len(read_results(folder / f"data/examples/individual/{SPARE}.safetensors")) == 0


def test_what_reads_data_is_refused_beside_a_task_without_any(folder: Path, tmp_path: Path) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params |= {"statistics": {"gram": {"kind": "gram"}}, "validation": {"split": "train"}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(InputError, match=rf"tasks\.{SPARE}\.kind: .* has no data, which statistics reads; leave one"):
        load_params(tmp_path / "params.yaml")
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["tasks"] = {SPARE: params["tasks"][SPARE]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(InputError, match="tasks: all are unmeasured"):
        load_params(tmp_path / "params.yaml")


def test_how_many_have_no_label_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with inside(folder):
        prepare.main(["three"])
    without = sum(label == -1 for label in TASKS["three"][0])
    said = capsys.readouterr().out
    assert f"three: {COUNT - without} examples of test prepared, {without} without a label left out" in said
    assert len(Prepared(folder / "data/prepared/three")) == COUNT - without
