"""Models and examples of which no score can be computed are refused: NaN, texts without tokens, 16-bit pictures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as Pictures

from merganser.errors import InputError
from merganser.evaluation import evaluator, metrics
from merganser.evaluation.evaluator import Evaluator, open_evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import score_of
from merganser.models import Network, defined, open_network
from tests.evaluation.kinds.texts import sentences
from tests.tiny_transformers import FAMILIES, noise, write_model

ANSWERS, TASK = ["yes", "no"], {"output_type": "multiple_choice", "doc_to_text": "{{text}}"}
CHOICE = TASK | {"doc_to_choice": "choices", "doc_to_target": "label"}
WRITTEN = {
    "output_type": "generate_until",
    "doc_to_text": "{{text}}",
    "doc_to_target": "{{label}}",
    "generation_kwargs": {"max_gen_toks": 3},
}
TEMPLATES = ["an image of {}"]


def rows(**columns: Any) -> Dataset:
    """Give four texts and pictures of two classes; `columns`: those that stand in their place."""
    types = {"text": Value("string"), "image": Image(), "label": ClassLabel(names=ANSWERS)}
    values = {"text": sentences(4), "image": noise(4, (9, 9)), "label": [0, 1, 0, 1]} | columns
    return Dataset.from_dict(
        values | {"choices": [ANSWERS] * 4}, features=Features(types | {"choices": List(Value("string"))})
    )


def prepared(folder: Path, model: str, kind: str, own: dict[str, Any], data: Dataset) -> tuple[Network, Prepared]:
    """Write a model of which every parameter is NaN, and what it reads of the data."""
    evaluator = open_evaluator(kind, own, None)
    read = evaluator.kind.columns(evaluator.settings) or ("text", "choices", "label")
    DatasetDict(test=data.select_columns([name for name in read if name in data.column_names])).save_to_disk(
        folder / "data"
    )
    outputs = evaluator.outputs(ANSWERS)
    written = write_model(folder / "model", model, outputs)
    network = open_network(FAMILIES[model], folder / "model", outputs=outputs)
    network.load((name, torch.full_like(value, float("nan"))) for name, value in written.named_parameters())
    (folder / "prepared").mkdir()
    evaluator.prepare(folder / "data", "test", network, folder / "prepared")
    return network, Prepared(folder / "prepared")


@pytest.mark.parametrize(
    ("model", "kind", "own"),
    [
        ("bert", "text_classification", {}),
        ("bert", "regression", {}),
        ("vit", "image_classifier", {}),
        ("clip", "image_classification", {"templates": TEMPLATES}),
        ("gpt2", "text_generation", {"prompt": "{text}", "answers": ANSWERS}),
        ("gpt2", "text_generation", {"prompt": "{text}", "answers": ANSWERS, "scoring": "rank"}),
        ("t5", "text_generation", {"prompt": "{text}", "answers": ANSWERS}),
        ("t5", "text_generation", {"prompt": "{text}", "answers": ANSWERS, "scoring": "rank"}),
        ("gpt2", "language_model", {"task": CHOICE}),
        ("gpt2", "language_model", {"task": WRITTEN}),
    ],
)
def test_a_model_whose_outputs_are_nan_has_no_score(model: str, kind: str, own: dict[str, Any], tmp_path: Path) -> None:
    network, data = prepared(tmp_path, model, kind, own, rows())
    metric = "exact_match" if own.get("task") is WRITTEN else None
    with pytest.raises(InputError, match="the model's outputs are not finite"):
        open_evaluator(kind, own, metric).results(network, data, batch_size=3)


def test_an_output_that_is_ruled_out_is_no_reason() -> None:
    outputs = torch.tensor([[0.0, float("-inf")]])
    assert defined(outputs) is outputs


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="text 2 has no tokens for the model's tokenizer: ''; leave it out"):
        prepared(
            tmp_path,
            "gpt2",
            "text_generation",
            {"prompt": "{text}", "answers": ANSWERS},
            rows(text=["a", "a", "", "a"]),
        )


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_pictures_of_more_than_8_bits_are_refused(dtype: Any, tmp_path: Path) -> None:
    deep = Pictures.fromarray(np.full((9, 9), 1000, dtype=dtype))
    deep.save(tmp_path / "deep.tiff")
    data = rows(image=[*noise(3, (9, 9)), str(tmp_path / "deep.tiff")])
    with pytest.raises(InputError, match=r"an image has more than 8 bits a channel \(mode "):
        prepared(tmp_path, "vit", "image_classifier", {}, data)


def test_pictures_that_resizing_would_make_huge_are_refused(tmp_path: Path) -> None:
    data = rows(image=[*noise(3, (9, 9)), Pictures.new("L", (1, 300))])
    with pytest.raises(InputError, match="an image is 1 x 300 pixels, one side more than 256 times the other; crop it"):
        prepared(tmp_path, "vit", "image_classifier", {}, data)


@pytest.mark.parametrize("value", [85.0, -1.5, float("nan"), float("inf")])
def test_a_metric_that_gives_no_fraction_is_refused(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    own = metrics.Metric(lambda predictions, labels, weights: np.full(np.shape(weights)[:-1], value), "own")
    monkeypatch.setitem(metrics.METRICS, "own", own)
    labels = np.arange(4)
    for results in (Results(prediction=labels, label=labels), Results(score=np.full(4, value))):
        with pytest.raises(InputError, match=r"^own: its value is .*a fraction, from -1 to 1"):
            score_of("own", results)


def test_a_kind_that_leaves_examples_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, whole = prepared(tmp_path, "bert", "text_classification", {}, rows())
    short = SimpleNamespace(results=lambda *_: Results(score=np.zeros(len(whole) - 1)))  # as without the last batch
    monkeypatch.setattr(evaluator, "get_kind", lambda name: short)
    with pytest.raises(InputError, match=r"^own: its module gives 3 results of 4 examples"):
        Evaluator("own", None, "accuracy").results(network, whole, 2)
