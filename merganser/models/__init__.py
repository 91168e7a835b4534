"""Model families: how to build a model from its configuration, load a task's parameters and classify images.

A family is a module with one function, `load_classifier`; params.yaml names it as `base.family`.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from merganser.errors import InputError

FAMILIES = {"open_clip": "merganser.models.open_clip"}


class Classifier(Protocol):
    """A model with its class heads. B images, C classes."""

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Turn PIL images or uint8 arrays (height, width, 3) into the model's input (B, 3, H, W)."""

    def logits(self, pixels: Tensor) -> Tensor:
        """Score every class: (B, C)."""


# (folder with the configuration, the task's parameters, each class's prompts)
LoadClassifier = Callable[[Path, Iterable[tuple[str, Tensor]], Sequence[Sequence[str]]], Classifier]


def load_classifier(family: str) -> LoadClassifier:
    """Return the family's loader; raise InputError for a family that is not known."""
    if family not in FAMILIES:
        raise InputError(f"base.family: {family!r} is not a model family; known: {', '.join(FAMILIES)}")
    loader: LoadClassifier = import_module(FAMILIES[family]).load_classifier
    return loader
