"""Encoders with a head for each token of a text. Shape legend: B texts, L tokens, C outputs of the head, D features."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from merganser.errors import InputError
from merganser.models import Inputs
from merganser.models.naming import naming_of
from merganser.models.texts import MASK, TextModule, ready


class TokenNetwork(TextModule, ABC):
    """An encoder that scores every token."""

    def __init__(self, module: Any, folder: Path, left_out: Sequence[str], heads: Sequence[str]) -> None:
        """Take a module as it was built, with its folder's tokenizer; `heads`: the names that its head may have."""
        super().__init__(module, folder, naming_of(module, folder, left_out))
        parts = dict(module.named_modules())
        if not any(name in parts for name in heads):
            raise InputError(f"{folder}: {type(module).__name__} has no head called {' or '.join(heads)}")
        self._head: Module = next(parts[name] for name in heads if name in parts)
        if not self.tokenizer.is_fast:
            what = "does not say where its tokens stand in a text; save one that has a tokenizer.json"
            raise InputError(f"{folder}: the tokenizer {type(self.tokenizer).__name__} {what}")

    def _features(self, inputs: Inputs) -> Tensor:
        """Return the mean over a text's tokens of the head's inputs: (B, D)."""
        return _mean(_widened(self._passed(self._head, inputs)[0], inputs), inputs)

    def _run(self, inputs: Inputs) -> Tensor:
        return _widened(self._scores(self.module(**ready(inputs, self.device))), inputs)

    @abstractmethod
    def _scores(self, answer: Any) -> Tensor:
        """Return the scores in the module's output: (B, L, C)."""

    def _probed(self, inputs: Inputs) -> Tensor:
        """Return the mean of the tokens' scores (B, C), comparable between texts of different length."""
        return _mean(self._run(inputs), inputs)


def _widened(values: Tensor, inputs: Inputs) -> Tensor:
    """Put values of the computed tokens (B, L', C) at their places among all, with zeros for padding: (B, L, C)."""
    shown = inputs[MASK].to(values.device).bool()
    return pad(values, (0, 0, 0, shown.shape[1] - values.shape[1])).masked_fill(~shown[..., None], 0)


def _mean(values: Tensor, inputs: Inputs) -> Tensor:
    """Return the mean over a text's tokens: (B, C) of (B, L, C) with zeros for padding."""
    return values.sum(dim=1) / inputs[MASK].to(values.device).sum(dim=1, keepdim=True)
