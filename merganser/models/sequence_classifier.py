"""Language models with a task's own head over one or two texts. Shape legend: B texts, C classes, D features."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import AutoModelForSequenceClassification

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import Change, Inputs
from merganser.models.configurations import Make, check_parameter_names, read_family_config
from merganser.models.naming import HEAD_NAMES, naming_of
from merganser.models.texts import TextModule, ready

CLASSIFIER = AutoModelForSequenceClassification.from_config
# The last one is of XLM, whose head is a part of what summarises the text; XLNet has one after that.
HEADS = ("classifier", "score", "classification_head", "logits_proj", "sequence_summary.summary")


class SequenceClassifier(TextModule):
    """A language model with its head, for classes or one number."""

    def __init__(self, module: Any, folder: Path, left_out: tuple[str, ...]) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, folder, naming_of(module, folder, left_out))
        if not any(name in HEADS for name, _ in module.named_modules()):
            raise InputError(f"{folder}: {type(module).__name__} has no head called {', '.join(HEADS[:3])}")

    def _features(self, inputs: Inputs) -> Tensor:
        states, scores = self._passed(self._head(), inputs)
        if states.dim() == 2:
            return states
        return states[:, 0] if scores.dim() == 2 else self._last(states, inputs)

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """In the block, give the head the result of `change` on the features (..., D)."""
        return self._head().register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))

    def _head(self) -> Module:
        parts = dict(self.module.named_modules())
        return next(parts[name] for name in HEADS if name in parts)

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(**ready(inputs, self.device)).logits
        return logits

    def _last(self, states: Tensor, inputs: Inputs) -> Tensor:
        """Return the states of the last token without padding, the input of a decoder's head."""
        tokens = ready(inputs, self.device)["input_ids"]
        places = torch.arange(tokens.shape[1], device=self.device) * (tokens != self.module.config.pad_token_id)
        return states[torch.arange(len(states), device=self.device), places.argmax(dim=1)]


def check_writer_or_classifier(
    family: str, make: Make, folder: Path, checkpoint: Checkpoint, words: Sequence[str], may_lack: Sequence[str] = ()
) -> None:
    """Refuse a checkpoint that is neither a language model of a family, which `make` builds, nor a classifier.

    `words`: the language model's output, which a classifier does without.
    """
    config = read_family_config(family, folder)
    if any(fnmatchcase(name, pattern) for name in checkpoint.names for pattern in HEAD_NAMES):
        check_parameter_names(CLASSIFIER, config, folder, checkpoint, left_out=words)
    else:
        check_parameter_names(make, config, folder, checkpoint, may_lack=may_lack)
