"""What all networks of texts share: the tokenizer, and scores by whatever the module's `_run` gives."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from merganser.models import Inputs
from merganser.models.named_module import NamedModule
from merganser.models.naming import Naming
from merganser.models.texts import Texts, encode, open_tokenizer


class TextModule(NamedModule, ABC):
    """A module with the tokenizer of its folder; `_run` scores a batch. Shape legend: B texts, C classes or words."""

    def __init__(self, module: Any, folder: Path, naming: Naming, side: Literal["left", "right"] = "right") -> None:
        """Take a module as it was built; its texts are padded and cut on one side."""
        super().__init__(module, naming)
        self.tokenizer = open_tokenizer(folder, module.config, side)

    def encode(self, texts: Texts, max_length: int) -> dict[str, Tensor]:
        """Tokenise texts, or pairs of them, padded to the longest; longer ones are cut to `max_length` tokens."""
        return encode(self.tokenizer, texts, max_length)

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Score every class, or every word as the next one, for inference: (B, C)."""
        return self._run(inputs)

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Score with these parameters in place of the loaded ones of their names; differentiable: (B, C)."""
        return self.with_parameters(parameters, lambda: self._run(inputs))

    @abstractmethod
    def _run(self, inputs: Inputs) -> Tensor:
        """Score a batch (B, C)."""
