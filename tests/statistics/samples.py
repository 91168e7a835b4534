"""Tiny networks with prepared examples, for statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.models import Network, TakesTexts, open_network
from merganser.statistics.kinds.fisher import Score
from merganser.statistics.sampling import Sample, draw
from tests.tiny_clip import CLASSES, pictures, write_clip
from tests.tiny_transformers import write_model

TEXTS = [
    "the cat sat",
    "a dog ran on the mat .",
    "yes",
    "the red mat",
    "no dog sat on a cat",
    "a light image of the cat",
]


def clip_sample(folder: Path, count: int = 10, examples: int = 7) -> tuple[Network, dict[str, Tensor], Sample]:
    """Load the tiny dual encoder and draw some of its pictures."""
    parameters, network = write_clip(folder / "clip"), open_network("open_clip", folder / "clip")
    network.load(parameters.items())
    pixels = torch.from_numpy(pictures(count)[0]).permute(0, 3, 1, 2).contiguous()
    settings = {"templates": ["a {} image."]}
    prepared = prepared_in(folder / "pictures", "image_classification", {"pixels": pixels}, settings)
    return network, parameters, draw(prepared, examples, seed=0, task="task")


def text_sample(folder: Path, kind: str, **settings: Any) -> tuple[Network, Sample]:
    """Load a tiny language model with a head of three outputs, and its texts of different lengths."""
    model = write_model(folder / kind, kind, outputs=3)
    network = open_network("causal" if kind == "gpt2" else "encoder", folder / kind, outputs=3)
    network.load(model.state_dict().items())
    assert isinstance(network, TakesTexts)
    tokens = {name: value.int() for name, value in network.encode(TEXTS, 30).items()}
    prepared = prepared_in(folder / "texts", "text_classification", tokens, settings)
    return network, draw(prepared, 100, seed=0, task="task")


def prepared_in(folder: Path, kind: str, arrays: dict[str, Tensor], settings: dict[str, Any]) -> Prepared:
    """Write examples without labels."""
    folder.mkdir()
    write_prepared(folder, [arrays], {"kind": kind, "settings": settings, "metric": "accuracy", "classes": CLASSES})
    return Prepared(folder)


def score_of(network: Network, sample: Sample) -> Score:
    """Return what scores the sample's examples with other parameters."""

    def score(parameters: Mapping[str, Tensor], rows: Any) -> Tensor:
        return evaluator_for(sample.prepared).class_logits(network, sample.prepared, parameters, rows)

    return score
