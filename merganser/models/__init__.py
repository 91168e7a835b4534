"""Model families: how to build a model from its configuration, load a task's parameters and classify images.

A family is a module with one function, `open_network`; params.yaml names it as `base.family`.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError

FAMILIES = {"open_clip": "merganser.models.open_clip"}


class Classifier(Protocol):
    """A model with its class heads. B images, C classes."""

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Turn PIL images or uint8 arrays (height, width, 3) into the model's input (B, 3, H, W)."""

    def logits(self, pixels: Tensor) -> Tensor:
        """Score every class: (B, C)."""


class Network(Protocol):
    """An architecture, built once, that takes the parameters of one model after another."""

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take all parameters of a model."""

    def classifier(self, prompts: Sequence[Sequence[str]]) -> Classifier:
        """Make a head of each class's prompts. The classifier is the loaded model's: good until the next `load`."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the loaded model's unit embedding of each of N texts (N, D)."""


def open_network(family: str, folder: Path) -> Network:
    """Build what the configuration in a folder describes; raise InputError for a family that is not known."""
    if family not in FAMILIES:
        raise InputError(f"base.family: {family!r} is not a model family; known: {', '.join(FAMILIES)}")
    network: Network = import_module(FAMILIES[family]).open_network(folder)
    return network


def embed_classes(family: str, base: Path, classes: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """Return the mean of the unit text embeddings of each task's class names (D,), by the model in a folder."""
    checkpoint, network = open_checkpoint(base), open_network(family, base)
    network.load((name, checkpoint.read(name)) for name in checkpoint.names)
    return {task: network.embed(names).mean(dim=0) for task, names in classes.items()}
