"""Rows of an embedding that an adapter has trained, for some tokens alone (PEFT's trainable tokens)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError

TOKENS = "TRAINABLE_TOKENS"
FIELDS = ("token_indices", "trainable_token_indices")  # of an adapter of that kind, and of one of another kind
ENDS = (".token_adapter.trainable_tokens_delta", ".trainable_tokens_delta")
MODEL = "base_model.model."
LARGEST = 2**40


@dataclass(frozen=True)
class Tokens:
    """The rows of some tokens: their new values, and their numbers."""

    name: str  # of the parameter
    key: str  # of the tensor with the values
    rows: tuple[int, ...]

    def put(self, delta: Tensor, values: Tensor, weights: Tensor) -> None:
        """Write into a parameter's delta what makes its rows these values."""
        if values.shape[1:] != weights.shape[1:] or max(self.rows) >= len(weights):
            shapes = f"shape {list(values.shape)}, for {list(weights.shape)}"
            raise InputError(f"{self.name}: the rows of trained tokens have {shapes}; give the base it was trained on")
        rows = torch.tensor(self.rows)
        delta[rows] = values.to(torch.float32) - weights[rows].to(torch.float32)


def find_token_rows(path: Path, tensors: Checkpoint, config: Mapping[str, Any]) -> dict[str, Tokens]:
    """Find the tensors that are rows of tokens; raise InputError where the configuration does not fit them."""
    found = {}
    for key in tensors.names:
        end = next((end for end in ENDS if key.endswith(end)), None)
        if end is None:
            continue
        module = key.removeprefix(MODEL).removesuffix(end)
        rows, shape = _rows(path, config, module), tensors.spec(key).shape
        if len(shape) != 2 or len(rows) != shape[0]:
            raise InputError(f"{path}: {key} has shape {list(shape)}, for {len(rows)} tokens; save the adapter again")
        found[key] = Tokens(f"{module}.weight", key, rows)
    named = [field for field in FIELDS if config.get(field)]
    if named and not found:
        raise InputError(f"{path}: {named[0]} names tokens, and none of them is in it; save the adapter again")
    return found


def _rows(path: Path, config: Mapping[str, Any], module: str) -> tuple[int, ...]:
    """Return the numbers of a module's trained tokens."""
    given = next((config[field] for field in FIELDS if config.get(field)), None)
    if isinstance(given, dict):
        ends = [name for name in given if f".{module}".endswith(f".{name}")]
        given = given[ends[0]] if len(ends) == 1 else None
    numbers = given if isinstance(given, list) else []
    whole = all(type(number) is int and 0 <= number < LARGEST for number in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise InputError(f"{path}: its configuration does not name the tokens of {module}; save the adapter again")
    return tuple(numbers)
