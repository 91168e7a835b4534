"""Tiny networks with prepared examples, for statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.prepared import Prepared, write_prepared
from merganser.models import Network, TakesTexts, open_network
from merganser.statistics.kinds.fisher import Score
from merganser.statistics.sampling import Sample, draw
from tests.tiny_clip import CLASSES, pictures, write_clip
from tests.tiny_transformers import tokenizer, write_model

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


def expert_sample(folder: Path) -> tuple[Network, Sample]:
    """Load a tiny network whose experts are linear maps, and texts that reach different ones."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
    experts = {"num_experts": 8, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 0}
    torch.manual_seed(0)
    config = SwitchTransformersConfig(**sizes, **experts, vocab_size=32, pad_token_id=0, decoder_start_token_id=0)
    model = SwitchTransformersForConditionalGeneration(config)
    model.save_pretrained(folder / "experts")
    tokenizer().save_pretrained(folder / "experts")
    network: Any = open_network("seq2seq", folder / "experts")
    network.load(model.state_dict().items())
    tokens = {name: value.int() for name, value in network.encode(TEXTS, 30).items()}
    prepared = prepared_in(folder / "texts", "text_generation", tokens, {})
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
