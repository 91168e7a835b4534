"""Layers in memory, for laws: what a method would be given by the pipeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from merganser import registry
from merganser.layers import Factors, Layer, LayerDeltas, LayerFactors
from merganser.overlays.parts import Parts


def matrices(deltas: Sequence[Tensor], name: str = "w", seed: int = 0) -> LayerDeltas:
    """Make a matrix layer of T task matrices."""
    return LayerDeltas(name, "matrix", task_names(deltas), torch.stack(list(deltas)), seed)


def vectors(deltas: Sequence[Tensor], name: str = "b", seed: int = 0) -> LayerDeltas:
    """Make a vector layer of T deltas."""
    return LayerDeltas(name, "vector", task_names(deltas), torch.stack(list(deltas)), seed)


def factored(deltas: Sequence[Tensor], name: str = "w", rank: int | None = None) -> LayerFactors:
    """Decompose T task matrices with torch's SVD, keeping `rank` vectors (all by default)."""
    svds = [torch.linalg.svd(delta, full_matrices=False) for delta in deltas]
    return LayerFactors(name, task_names(deltas), tuple(Factors(u[:, :rank], s, vh[:rank]) for u, s, vh in svds))


def task_names(deltas: Sequence[Tensor]) -> tuple[str, ...]:
    """Name T tasks."""
    return tuple(f"task{t}" for t in range(len(deltas)))


@dataclass(frozen=True)
class Layers:
    """A LayerSource in memory."""

    layers: Sequence[Layer]

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.layers[0].tasks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    def layer(self, name: str) -> Layer:
        return self.layers[self.names.index(name)]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)


def merged(name: str, *layers: Layer, **values: Any) -> list[Tensor | Parts]:
    """Run a method by its registered name over layers, first pass included."""
    method = registry.get(name)
    filled = method.validate(name, values)
    prepared = method.first_pass(Layers(layers), filled)
    return [method.apply(replace(layer, prepared=prepared), filled) for layer in layers]
