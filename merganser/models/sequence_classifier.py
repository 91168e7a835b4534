"""Language models with a task's own head over one or two texts. Shape legend: B texts, C classes, D features."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import AutoModelForSequenceClassification

from merganser.models import Change, DeviceName, Inputs, Precision
from merganser.models.configurations import build
from merganser.models.naming import naming_of
from merganser.models.text_module import TextModule, ready

HEADS = ("classifier", "score", "classification_head")


class SequenceClassifier(TextModule):
    """A language model with its head, classes or one number."""

    def __init__(self, module: Any, folder: Path, left_out: tuple[str, ...]) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, folder, naming_of(module, folder, left_out))

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return what the head sees, for inference: (B, D)."""
        return self._batched(self._features, inputs)

    def _features(self, inputs: Inputs) -> Tensor:
        seen: list[Tensor] = []
        name, head = self._head()
        hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self._run(inputs)
        finally:
            hook.remove()
        if seen[0].dim() == 2:
            return seen[0]
        return seen[0][:, 0] if name == "classifier" else self._last(seen[0], inputs)

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """While the block runs, give the head what `change` makes of the features (..., D)."""
        _, head = self._head()
        return head.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))

    def _head(self) -> tuple[str, Module]:
        return next((name, part) for name, part in self.module.named_children() if name in HEADS)

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(**ready(inputs, self.device)).logits
        return logits

    def _last(self, states: Tensor, inputs: Inputs) -> Tensor:
        """Return the states of the last token that is not padding, which is what a decoder's head is applied to."""
        tokens = ready(inputs, self.device)["input_ids"]
        places = torch.arange(tokens.shape[1], device=self.device) * (tokens != self.module.config.pad_token_id)
        return states[torch.arange(len(states), device=self.device), places.argmax(dim=1)]


def build_classifier(config: Any, folder: Path, outputs: int | None, device: DeviceName, precision: Precision) -> Any:
    """Build a classifier with so many outputs, those of the configuration itself where none are given."""
    if outputs is not None:
        config.num_labels = outputs
    return build(AutoModelForSequenceClassification.from_config, config, folder, device, precision)
