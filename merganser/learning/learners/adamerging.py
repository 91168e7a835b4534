"""AdaMerging (arXiv:2310.02575): a coefficient per task, or per task and parameter.

AdaMerging++ merges trimmed deltas, without the entries whose sign is not the elected one.
Legend: T tasks, L parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning import Values
from merganser.learning.settings import LearnerSettings
from merganser.operators.elect import cut_and_winner, elect_sign
from merganser.operators.passes import over_deltas
from merganser.operators.sums import inner_products, scaled_sum
from merganser.operators.trim import dense, trim

READS: Literal["deltas"] = "deltas"
COEFFICIENTS = "coefficients"


class Settings(LearnerSettings):
    """Whether each parameter has coefficients of its own, where they start, and what `plus_plus` keeps of a task."""

    granularity: Literal["layer", "task"] = "layer"
    scaling: float = 0.3
    plus_plus: bool = False
    density: Annotated[float, Field(gt=0, le=1)] = 0.2


@dataclass(frozen=True)
class WeightedSum:
    """The sum of the tasks' prepared deltas, each times its coefficient: (L, T) of them, or (1, T) for all layers."""

    layers: LayerSource
    settings: Settings
    prepared: Callable[[LayerDeltas], Tensor]

    def start(self) -> Values:
        """Give every task the starting coefficient."""
        rows = len(self.layers.names) if self.settings.granularity == "layer" else 1
        return {COEFFICIENTS: torch.full((rows, len(self.layers.tasks)), self.settings.scaling, dtype=torch.float64)}

    def form(self, values: Values, step: int | None = None) -> Callable[[LayerDeltas], Tensor]:
        """Return the weighted sum of one layer's deltas."""
        return lambda layer: scaled_sum(self.prepared(layer), 1, values[COEFFICIENTS][self.row(layer.name)].tolist())

    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the inner products of a layer's gradient and deltas; those of all layers are added for one row."""
        pulled = torch.zeros_like(values[COEFFICIENTS])
        found = over_deltas(self.layers, lambda layer: inner_products(self.prepared(layer), gradients[layer.name]))
        for name, products in zip(self.layers.names, found, strict=True):
            pulled[self.row(name)] += products
        return {COEFFICIENTS: pulled}

    def row(self, name: str) -> int:
        """Return the number of a layer's row of coefficients."""
        return self.layers.names.index(name) if self.settings.granularity == "layer" else 0


def bind(layers: LayerSource, settings: Settings, seed: int) -> WeightedSum:
    """Return how coefficients form merged deltas; for `plus_plus` this reads all layers to find what is kept."""
    return WeightedSum(layers, settings, agreeing(layers, settings.density) if settings.plus_plus else whole)


def whole(layer: LayerDeltas) -> Tensor:
    """Return the deltas as they are."""
    return layer.deltas


def agreeing(layers: LayerSource, density: float) -> Callable[[LayerDeltas], Tensor]:
    """Return a function that keeps each task's largest entries where they have the elected sign."""
    cut, winner = cut_and_winner(layers, density)

    def prepared(layer: LayerDeltas) -> Tensor:
        trimmed = trim(layer.deltas, cut)
        kept, sign = dense(trimmed), elect_sign(trimmed, winner)
        return kept.mul_(kept * sign > 0)

    return prepared
