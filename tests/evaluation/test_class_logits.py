"""Class scores that can be differentiated: those that the evaluation takes the likeliest class of."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.evaluator import Evaluator, evaluator_for, open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.models import Network, open_network
from tests.evaluation.kinds.texts import classes, data_set
from tests.tiny_clip import write_clip, write_data_set
from tests.tiny_transformers import write_model

ROWS = [5, 0, 3]


def prepare(folder: Path, evaluator: Evaluator, network: Network) -> Prepared:
    (folder / "prepared").mkdir()
    evaluator.prepare(folder / "data", "test", network, folder / "prepared")
    return Prepared(folder / "prepared")


def scores(network: Network, prepared: Prepared, parameters: dict[str, Tensor], moved: str) -> Tensor:
    """Give the classes' scores of some rows; check that they are differentiable in one parameter."""
    leaf = parameters[moved].clone().requires_grad_()
    found = evaluator_for(prepared).class_logits(network, prepared, {moved: leaf}, ROWS)
    found.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0
    return found.detach()


def test_pictures_are_scored_by_the_prompts_of_their_task(tmp_path: Path) -> None:
    parameters = write_clip(tmp_path)
    write_data_set(tmp_path / "data", {"test": 6})
    network = open_network("open_clip", tmp_path)
    evaluator = open_evaluator("image_classification", {"templates": ["a {} image."]}, None)
    prepared = prepare(tmp_path, evaluator, network)
    network.load(parameters.items())
    found = scores(network, prepared, parameters, "visual.conv1.weight")
    evaluator.results(network, prepared, batch_size=6)
    torch.testing.assert_close(found, network.logits({"pixels": prepared.array("pixels")[ROWS]}))


def test_texts_are_scored_without_the_outputs_that_are_no_class(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "bert", 4)
    data_set(*classes(6, ["no", "maybe", "yes"])).save_to_disk(tmp_path / "data")
    network = open_network("encoder", tmp_path / "model", outputs=4)
    evaluator = open_evaluator("text_classification", {"masked": [1]}, None)
    prepared = prepare(tmp_path, evaluator, network)
    parameters = dict(model.state_dict())
    network.load(parameters.items())
    found = scores(network, prepared, parameters, "classifier.weight")
    given = {name: prepared.array(name)[ROWS] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(found, network.logits(given)[:, [0, 2, 3]])


def test_a_kind_without_classes_is_refused_by_name(tmp_path: Path) -> None:
    network = open_network("open_clip", (write_clip(tmp_path), tmp_path)[1])
    with pytest.raises(InputError, match="regression: this kind has no classes"):
        open_evaluator("regression", {}, None).class_logits(network, Prepared(tmp_path), {}, [0])
