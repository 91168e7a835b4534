"""Tokenise texts as a checkpoint's own tokenizer does. Shape legend: B texts, L tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer

from merganser.errors import InputError
from merganser.models import Inputs
from merganser.models.configurations import first_line

VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # without any, transformers makes one of no words

Texts = Sequence[str] | Sequence[tuple[str, str]]


def open_tokenizer(folder: Path, config: Any, side: Literal["left", "right"] = "right") -> Any:
    """Open the tokenizer of a folder, which pads and cuts texts on one side.

    It and the configuration pad with one token: the tokenizer's own, else the configuration's, else the one that ends a
    text. Raises InputError where there is no tokenizer, or none of these.
    """
    if not any(file for pattern in VOCABULARIES for file in folder.glob(pattern)):
        raise InputError(f"{folder}: no tokenizer.json nor another vocabulary; the checkpoint's folder must hold one")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what a tokenizer's files may lack is told in many ways
        raise InputError(f"{folder}: transformers cannot make the tokenizer: {first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _padding(tokenizer, config.pad_token_id)
    if tokenizer.pad_token_id is None:
        raise InputError(f"{folder}: there is no padding token, which batches need; set base.pad_token_id")
    config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = tokenizer.truncation_side = side
    return tokenizer


def _padding(tokenizer: Any, configured: int | None) -> str | None:
    usable = configured is not None and 0 <= configured < len(tokenizer)
    token: str | None = tokenizer.convert_ids_to_tokens(configured) if usable else tokenizer.eos_token
    return token


def encode(tokenizer: Any, texts: Texts, max_length: int) -> dict[str, Tensor]:
    """Tokenise texts or pairs of them, padded to the longest: (B, L) each; longer ones are cut to `max_length`."""
    columns = list(zip(*texts, strict=True)) if texts and not isinstance(texts[0], str) else [texts]
    encoded = tokenizer(*map(list, columns), padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    return dict(encoded)


def ready(inputs: Inputs, device: torch.device) -> dict[str, Tensor]:
    """Put a batch on a device without the columns in which it is all padding: (B, L) each."""
    used = inputs["attention_mask"].any(dim=0).nonzero()
    start, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return {name: value[:, start:stop].to(device, torch.long) for name, value in inputs.items()}
