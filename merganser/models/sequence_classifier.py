"""Language models with a task's own head over one or two texts. Shape legend: B texts, C classes, D features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build
from merganser.models.named_module import NamedModule
from merganser.models.naming import naming_of
from merganser.models.texts import Texts, encode, open_tokenizer, ready

HEADS = ("classifier", "score")


class SequenceClassifier(NamedModule):
    """A language model with its head, classes or one number."""

    def __init__(self, module: Any, folder: Path, left_out: tuple[str, ...]) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, naming_of(module, folder, left_out))
        self.tokenizer = open_tokenizer(folder, module.config)

    def encode(self, texts: Texts, max_length: int) -> dict[str, Tensor]:
        """Tokenise texts, or pairs of them, padded to the longest; longer ones are cut to `max_length` tokens."""
        return encode(self.tokenizer, texts, max_length)

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Score every class, for inference: (B, C)."""
        return self._run(inputs)

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return what the head sees, for inference: (B, D)."""
        seen: list[Tensor] = []
        name, head = next((name, part) for name, part in self.module.named_children() if name in HEADS)
        hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self._run(inputs)
        finally:
            hook.remove()
        if seen[0].dim() == 2:
            return seen[0]
        return seen[0][:, 0] if name == "classifier" else self._last(seen[0], inputs)

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Score every class with these parameters in place of the loaded ones of their names; differentiable."""
        return self.with_parameters(parameters, lambda: self._run(inputs))

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(**ready(inputs, self.device)).logits
        return logits

    def _last(self, states: Tensor, inputs: Inputs) -> Tensor:
        """Return the states of the last token that is no padding, which is what a decoder's head is applied to."""
        tokens = ready(inputs, self.device)["input_ids"]
        places = torch.arange(tokens.shape[1], device=self.device) * (tokens != self.module.config.pad_token_id)
        return states[torch.arange(len(states), device=self.device), places.argmax(dim=1)]


def open_classifier(
    config: Any,
    folder: Path,
    outputs: int | None,
    device: DeviceName,
    precision: Precision,
    left_out: tuple[str, ...],
) -> SequenceClassifier:
    """Build a classifier with so many outputs, those of the configuration itself where none are given."""
    if outputs is not None:
        config.num_labels = outputs
    make: Callable[..., Any] = AutoModelForSequenceClassification.from_config
    return SequenceClassifier(build(make, config, folder, device, precision), folder, left_out)
