"""Pictures under a head of their own, against a plain loop over transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_from_disk
from pydantic import ValidationError
from transformers import AutoImageProcessor

from merganser.errors import InputError
from merganser.evaluation import get_kind
from merganser.evaluation.evaluator import Evaluator, open_evaluator
from merganser.evaluation.metrics import METRICS
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import score_of
from merganser.models import open_network
from tests.tiny_clip import CLASSES, write_data_set
from tests.tiny_transformers import write_model

KIND = "image_classifier"
COUNT = 30


def prepared(folder: Path, outputs: int, evaluator: Evaluator) -> tuple[Any, Any, Prepared]:
    """Write a model and pictures; give transformers' model, the network, loaded, and what it reads."""
    model = write_model(folder / "model", "vit", outputs, seed=2)
    write_data_set(folder / "data", {"test": COUNT})
    network = open_network("vision", folder / "model", outputs=evaluator.outputs(evaluator.classes(folder / "data")))
    network.load(model.state_dict().items())
    (folder / "prepared").mkdir()
    evaluator.prepare(folder / "data", "test", network, folder / "prepared")
    return model, network, Prepared(folder / "prepared")


@pytest.mark.parametrize("metric", get_kind(KIND).METRICS)
@pytest.mark.parametrize(("outputs", "masked"), [(3, []), (5, [1, 4])])
def test_scores_are_those_of_a_plain_loop_over_the_outputs_that_are_classes(
    metric: str, outputs: int, masked: list[int], tmp_path: Path
) -> None:
    evaluator = open_evaluator(KIND, {"masked": masked}, metric)
    model, network, data = prepared(tmp_path, outputs, evaluator)
    rows = load_from_disk(tmp_path / "data")["test"]
    processor, found = AutoImageProcessor.from_pretrained(tmp_path / "model", backend="pil"), []
    for picture in rows["image"]:
        with torch.inference_mode():
            scores = model(**processor([picture], return_tensors="pt")).logits[0]
        found.append(int(np.delete(scores.numpy(), masked).argmax()))
    results = evaluator.results(network, data, batch_size=7)
    assert np.asarray(results.prediction).tolist() == found
    assert score_of(metric, results)["value"] == pytest.approx(METRICS[metric].compute(found, rows["label"], None))
    assert len(set(found)) > 1


def test_a_picture_without_a_label_is_refused_where_it_would_count_as_a_mistake(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {}, None)
    _, network, data = prepared(tmp_path, 3, evaluator)
    rows = load_from_disk(tmp_path / "data")
    labels = [None if number == 4 else label for number, label in enumerate(rows["test"]["label"])]
    feature = rows["test"].features["label"]
    rows["test"] = rows["test"].remove_columns("label").add_column("label", labels, feature=feature)
    rows.save_to_disk(tmp_path / "some")
    (tmp_path / "others").mkdir()
    evaluator.prepare(tmp_path / "some", "test", network, tmp_path / "others")
    evaluator.results(network, data, batch_size=7)
    with pytest.raises(InputError, match="example 4 of the data has no label"):
        evaluator.results(network, Prepared(tmp_path / "others"), batch_size=7)


def test_class_scores_are_differentiable_in_the_head_too(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {"masked": [0]}, None)
    model, network, data = prepared(tmp_path, 4, evaluator)
    head = model.classifier.weight.detach().clone().requires_grad_()
    scores = evaluator.class_logits(network, data, {"classifier.weight": head}, [3, 0])
    pixels = {"pixels": data.array("pixels")[[3, 0]]}
    torch.testing.assert_close(scores.detach(), network.logits(pixels)[:, 1:])
    scores.sum().backward()
    assert head.grad is not None
    assert not head.grad[0].any()  # of the output that is no class
    assert head.grad[1:].abs().sum() > 0


def test_a_head_of_other_classes_and_a_data_set_without_pictures_are_refused(tmp_path: Path) -> None:
    evaluator = open_evaluator(KIND, {}, None)
    evaluator.check_head(CLASSES, CLASSES, "task")
    with pytest.raises(InputError, match=r"the head has 4 outputs, the data 3 classes .*; set data\.masked"):
        evaluator.check_head([*CLASSES, "blue"], CLASSES, "task")
    write_data_set(tmp_path, {"test": 3})
    rows = load_from_disk(tmp_path)
    with pytest.raises(InputError, match="split test has no column 'image'"):
        evaluator.check_data({"test": rows["test"].remove_columns("image")}, tmp_path)
    with pytest.raises(InputError, match="no class names"):
        evaluator.check_data(
            {
                "test": rows["test"]
                .cast_column("label", rows["test"].features["label"])
                .remove_columns("label")
                .add_column("label", [0, 1, 2])
            },
            tmp_path,
        )
    with pytest.raises(ValidationError, match="templates"):
        get_kind(KIND).Settings.model_validate({"templates": ["a {}."]})
