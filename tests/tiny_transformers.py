"""Tiny random models of transformers with their heads and a tokenizer of a few words, as transformers saves them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipModel,
    T5Config,
)
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from merganser.checkpoints.reading import open_checkpoint
from tests.every_class import build
from tests.transformers_models import MODELS, T5, VOCABULARY

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "yes", "no", "red", "dark", "light", "of", "image", "."]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODERS = ("bert", "roberta", "deberta-v3")
CLASSIFIERS = ("vit", "convnext", "Dinov2ForImageClassification", "ResNetForImageClassification")
DECODERS = ("gpt2", "llama, untied", "llama, tied", "mistral", "qwen2", "gemma")
FAMILIES = (
    dict.fromkeys(ENCODERS, "encoder")
    | dict.fromkeys(DECODERS, "causal")
    | dict.fromkeys(CLASSIFIERS, "vision")
    | {"t5": "seq2seq", "flan-t5": "seq2seq", "clip": "clip", "siglip": "siglip"}
)
MAKERS = {
    "encoder": AutoModelForSequenceClassification.from_config,
    "causal": AutoModelForCausalLM.from_config,
    "seq2seq": AutoModelForSeq2SeqLM.from_config,
    "clip": CLIPModel,
    "siglip": SiglipModel,
    "vision": AutoModelForImageClassification.from_config,
}
PROCESSORS = {
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16),
    "siglip": SiglipImageProcessorPil(size={"height": 16, "width": 16}),
    "vit": ViTImageProcessorPil(size={"height": 16, "width": 16}),
    "Dinov2ForImageClassification": BitImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16}
    ),
    "convnext": ConvNextImageProcessorPil(size={"shortest_edge": 32}, crop_pct=0.8),
    "ResNetForImageClassification": ConvNextImageProcessorPil(size={"shortest_edge": 64}, crop_pct=0.8),
}


@cache
def tokenizer(ends: bool = True) -> Any:
    """Make a tokenizer of whole words that ends each text with `</s>`, or not, as those of decoders."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends:
        words.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", SPECIAL.index("</s>"))]
        )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], **names)


def random_model(
    kind: str, outputs: int | None = None, dtype: torch.dtype = torch.float32, seed: int = 0, make: Any = None
) -> Any:
    """Draw a model with weights that no initialisation would give; one for so many classes where that is asked.

    `make`: of its configuration, another model than the family's.
    """
    torch.manual_seed(seed)
    flan = T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    config = flan if kind == "flan-t5" else (MODELS[kind]() if kind in MODELS else build(kind)).config
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        for name, token in TOKENS.items():
            setattr(part, name, token)
    if outputs is not None:
        config.num_labels = outputs
    family = FAMILIES[kind]
    model = (make or MAKERS["encoder" if outputs and family != "vision" else family])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, measured in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                measured.copy_(1 + 0.3 * torch.rand_like(measured))
    return model.to(dtype).eval()


def write_model(
    folder: Path,
    kind: str,
    outputs: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    make: Any = None,
) -> Any:
    """Draw a model and write it, its tokenizer and its image processor."""
    model = random_model(kind, outputs, dtype, seed, make)
    model.save_pretrained(folder)
    if FAMILIES[kind] != "vision":
        tokenizer(ends=FAMILIES[kind] != "causal").save_pretrained(folder)
    if kind in PROCESSORS:
        PROCESSORS[kind].save_pretrained(folder)
    return model


__all__ = ["CLASSIFIERS", "DECODERS", "ENCODERS", "FAMILIES", "VOCABULARY", "random_model", "tokenizer", "write_model"]


def state_of(folder: Path) -> dict[str, Tensor]:
    """Read a saved model's parameters."""
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.names}


def noise(count: int, size: tuple[int, int]) -> list[Any]:
    """Draw pictures (height, width) of noise, with which resizing has much to do."""
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)) for _ in range(count)]
