"""The entropy of tasks whose heads have different numbers of classes."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import softmax

from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.inputs.heads import Head
from merganser.learning.task_losses import TaskLoss, open_losses
from merganser.models import open_network
from tests.evaluation.kinds.texts import classes, data_set, fresh
from tests.tiny_transformers import write_model

PATTERNS = ("classifier.*",)
OUTPUTS = {"cola": 2, "mnli": 3, "rte": 2}
NAMES = {2: ["no", "yes"], 3: ["no", "maybe", "yes"]}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TaskLoss]]:
    """Open three tasks of a base without a head, two of them with two classes."""
    root = tmp_path_factory.mktemp("tasks")
    write_model(root / "base", "bert", 2)
    data, heads = {}, {}
    for seed, (task, outputs) in enumerate(OUTPUTS.items()):
        data_set(*classes(6, NAMES[outputs])).save_to_disk(root / task)
        evaluator = open_evaluator("text_classification", {}, None)
        network = open_network("encoder", root / "base", outputs=outputs)
        evaluator.prepare(root / task, "test", network, fresh(root / f"{task}-prepared"))
        data[task] = Prepared(root / f"{task}-prepared")
        drawn = write_model(root / f"{task}-model", "bert", outputs, seed=seed).state_dict()
        heads[task] = Head({name: v for name, v in drawn.items() if name.startswith("classifier")}, PATTERNS, [])
    return root, open_losses("encoder", root / "base", data, heads, "cpu")


def test_each_task_is_measured_by_its_own_head(opened: tuple[Path, list[TaskLoss]]) -> None:
    root, losses = opened
    for loss in losses:
        network = open_network("encoder", root / "base", outputs=OUTPUTS[loss.task])
        base = write_model(root / "again", "bert", 2).state_dict()
        network.load({**base, **loss.head}.items())
        p = softmax(network.logits(loss.prepared.rows(["input_ids", "attention_mask"], [4, 1])).double(), dim=1)
        expected = float(-(p * p.log()).sum(1).mean())
        assert loss({}, [4, 1]).item() == pytest.approx(expected, rel=1e-5)


def test_networks_of_several_numbers_of_classes_have_one_storage(opened: tuple[Path, list[TaskLoss]]) -> None:
    _, (cola, mnli, rte) = opened
    assert cola.network is rte.network is not mnli.network
    first, second = (dict(loss.network.module.named_parameters()) for loss in (cola, mnli))
    apart = [name for name in first if first[name].data_ptr() != second[name].data_ptr()]
    assert sorted(apart) == ["classifier.bias", "classifier.weight"]


def test_the_entropy_is_differentiable_in_the_shared_weights(opened: tuple[Path, list[TaskLoss]]) -> None:
    root, losses = opened
    name = "bert.encoder.layer.0.output.dense.weight"
    leaf = write_model(root / "again", "bert", 2).state_dict()[name].clone().requires_grad_()
    for loss in losses:
        before = None if leaf.grad is None else leaf.grad.clone()
        loss({name: leaf}, [0, 1]).backward()
        assert leaf.grad is not None
        assert before is None or not torch.equal(leaf.grad, before)
    assert leaf.grad.isfinite().all()
