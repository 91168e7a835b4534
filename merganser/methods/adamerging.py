"""AdaMerging: a weighted sum of task vectors whose coefficients were learned from unlabelled data.

A coefficient per task, or per task and parameter. AdaMerging++ merges trimmed deltas, without the entries whose sign is
not the elected one. Legend: T tasks, L parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.kept import kept_in_memory
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, MappedLayers
from merganser.learning import Form, Learner, Values, learned_by
from merganser.learning.settings import LearnerSettings
from merganser.merging.method import method
from merganser.operators.sums import inner_products_with_gradient, scaled_sum
from merganser.operators.ties import cut_and_winner, dense, elect_sign, trim

COEFFICIENTS = "coefficients"


class Settings(LearnerSettings):
    """Whether each parameter has coefficients of its own, where they start, and what `plus_plus` keeps of a task."""

    granularity: Literal["layer", "task"] = "layer"
    scaling: float = 0.3
    plus_plus: bool = False
    density: Annotated[float, Field(gt=0, le=1)] = 0.2


@dataclass(frozen=True)
class WeightedSum(Form):
    """The sum of the tasks' deltas, each times its coefficient: (L, T) of them, or (1, T) for all layers."""

    settings: Settings

    def start(self) -> Values:
        """Give every task the starting coefficient."""
        rows = len(self.layers.names) if self.settings.granularity == "layer" else 1
        return {COEFFICIENTS: torch.full((rows, len(self.layers.tasks)), self.settings.scaling, dtype=torch.float64)}

    def form(self, values: Values, step: int | None = None) -> Callable[[LayerDeltas], Tensor]:
        """Return the weighted sum of one layer's deltas."""
        return lambda layer: scaled_sum(layer.deltas, 1, values[COEFFICIENTS][self.row(layer.name)].tolist())

    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the inner products of a layer's gradient and deltas; those of all layers are added for one row."""
        pulled = torch.zeros_like(values[COEFFICIENTS])
        by_layer = self.layers.map(lambda layer: inner_products_with_gradient(layer.deltas, gradients[layer.name]))
        for name, products in zip(self.layers.names, by_layer, strict=True):
            pulled[self.row(name)] += products
        return {COEFFICIENTS: pulled}

    def row(self, name: str) -> int:
        """Return the number of a layer's row of coefficients."""
        return self.layers.names.index(name) if self.settings.granularity == "layer" else 0


def weighted_sum(layers: LayerSource, settings: Settings, seed: int) -> WeightedSum:
    """Return the sum of the tasks' deltas, for `plus_plus` of what is kept of them."""
    if settings.plus_plus:
        layers = kept_in_memory(MappedLayers(layers, agreeing(layers, settings.density)))
    return WeightedSum(layers, settings)


def agreeing(layers: LayerSource, density: float) -> Callable[[Layer], LayerDeltas]:
    """Return a function that keeps each task's largest entries where they have the elected sign."""
    cut, winner = cut_and_winner(layers, density)

    def keep(layer: Layer) -> LayerDeltas:
        assert isinstance(layer, LayerDeltas)
        trimmed = trim(layer.deltas, cut)
        kept, sign = dense(trimmed), elect_sign(trimmed, winner)
        return replace(layer, deltas=kept.mul_(kept * sign > 0))

    return keep


@method(
    family="learned",
    formula=r"\sum_t \lambda_{t,l} \Delta_{t,l}, \quad "
    r"\lambda = \mathrm{argmin} \sum_t \mathbb{E}_{x \sim t} H\big(p_{W_0 + \sum_j \lambda_j \Delta_j}(y \mid x)\big)",
    paper="Yang et al., ICLR 2024, arXiv:2310.02575",
    law="before the first step it is task arithmetic at the starting coefficient",
    involvement="TTA",
    learner=Learner(Settings, weighted_sum),
)
def adamerging(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Add the tasks' deltas with learned coefficients: those of the lowest entropy of the predictions.

    They are learned by the stage `learn`: a coefficient per task (`granularity: task`) or per task and parameter
    (`layer`). With `plus_plus` the deltas are trimmed first, and entries without the elected sign are zero.
    """
    learned = learned_by(layers, "adamerging")
    settings = Settings(**learned.settings)
    add = WeightedSum(layers, settings).form(learned.values)
    if not settings.plus_plus:
        return add
    keep = agreeing(layers, settings.density)
    return lambda layer: add(keep(layer))
