"""AdaRank: the singular components of each task, kept or dropped as was learned from unlabelled data.

A component is kept where its value is above zero, times a coefficient per task and layer; the value's derivative is
that of a sigmoid (a straight-through estimate).
Legend: T tasks, L parameters, K stored singular vectors, M rows, N columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors, LayerSource
from merganser.learning import Form, Learner, Values, learned_by
from merganser.learning.settings import LearnerSettings
from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.merging.method import method
from merganser.operators.sums import inner_products_with_gradient, scaled_sum

COEFFICIENTS = "coefficients"
SIZE = 0.1  # of the values to begin with
SOFTNESS = 10.0  # of the sigmoid whose derivative is taken


class Settings(LearnerSettings):
    """The coefficients' initial value, and the share of each spectrum that is kept at first."""

    steps: Annotated[int, Field(ge=0)] = 10000
    scaling: float = 0.3
    rank_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0


@dataclass(frozen=True)
class KeptComponents(Form):
    """The tasks' kept components, each task's times its coefficient for the layer; vectors whole."""

    settings: Settings

    def start(self) -> Values:
        """Keep the first components of every matrix; raise InputError where factors lack vectors."""
        for _ in self.layers.map(_refuse_truncated):
            pass
        tasks = len(self.layers.tasks)
        coefficients = torch.full((len(self.layers.names), tasks), self.settings.scaling, dtype=torch.float64)
        ranks = {name: min(self.layers.shapes[name]) for name, kind in self.layers.kinds.items() if kind == "matrix"}
        return {COEFFICIENTS: coefficients} | {name: self._first(rank).repeat(tasks, 1) for name, rank in ranks.items()}

    def _first(self, rank: int) -> Tensor:
        kept = torch.arange(rank) < max(1, count_of(self.settings.rank_fraction, rank))
        return torch.where(kept, SIZE, -SIZE).double()

    def form(self, values: Values, step: int | None = None) -> Callable[[Layer], Tensor]:
        """Return the merged delta of one layer."""

        def merged(layer: Layer) -> Tensor:
            coefficients = values[COEFFICIENTS][self.layers.names.index(layer.name)].tolist()
            if isinstance(layer, LayerDeltas):
                return scaled_sum(layer.deltas, 1, coefficients)
            assert isinstance(layer, LayerFactors)
            sides = zip(coefficients, values[layer.name], layer.factors, strict=True)
            sizes = torch.cat([c * _spectrum(f) * (_stored(value, f) > 0) for c, value, f in sides])
            u, vh = torch.cat([f.u for f in layer.factors], 1), torch.cat([f.vh for f in layer.factors])
            return (u * sizes.to(u.dtype)) @ vh

        return merged

    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the derivatives by the coefficients and, through the sigmoid, by what decides over each component."""
        pulled = {name: torch.zeros_like(value) for name, value in values.items()}

        def pull_one(layer: Layer) -> None:
            gradient, row = gradients[layer.name], self.layers.names.index(layer.name)
            if isinstance(layer, LayerDeltas):
                pulled[COEFFICIENTS][row] = inner_products_with_gradient(layer.deltas, gradient)
                return
            assert isinstance(layer, LayerFactors)
            for task, (f, value) in enumerate(zip(layer.factors, values[layer.name], strict=True)):
                products = _spectrum(f) * ((f.u.mT @ gradient.reshape(layer.shape)) * f.vh).sum(1, dtype=torch.float64)
                chosen = _stored(value, f)
                pulled[COEFFICIENTS][row, task] = products[chosen > 0].sum()
                soft = torch.sigmoid(chosen / SOFTNESS)
                slope = float(values[COEFFICIENTS][row, task]) * soft * (1 - soft) / SOFTNESS
                pulled[layer.name][task, : len(products)] = slope * products

        for _ in self.layers.map(pull_one):
            pass
        return pulled


def _spectrum(factors: Factors) -> Tensor:
    """Return the singular values that have vectors, in float64."""
    return factors.s[: factors.u.shape[1]].double()


def _stored(value: Tensor, factors: Factors) -> Tensor:
    """Return what decides over the components that have vectors; the others are zero."""
    return value[: factors.u.shape[1]].to(factors.s.device)


def _refuse_truncated(layer: Layer) -> None:
    """Refuse factors that lack vectors of singular values above their rounding."""
    for f in layer.factors if isinstance(layer, LayerFactors) else ():
        rounding = max(layer.shape) * torch.finfo(torch.float32).eps * float(f.s[:1].sum())
        if (f.s[f.u.shape[1] :] > rounding).any():
            reason = f"{layer.name} has {f.u.shape[1]} singular vectors of {min(layer.shape)}"
            raise InputError(f"adarank: {reason}, and all are needed; set decompose.rank_fraction to 1.0")


@method(
    vectors="alike",
    family="learned",
    formula=r"\sum_t \lambda_{t,l} \sum_i b_{ti}\, \sigma_{ti} u_{ti} v_{ti}^\top, \quad b_{ti} = [m_{ti} > 0]",
    paper="Lee et al., 2025, arXiv:2503.22178",
    law="with every singular value kept it is task arithmetic",
    involvement="TTA",
    learner=Learner(Settings, KeptComponents),
    rank_fraction=lambda tasks, **_: 1.0,
    copies=5,
)
def adarank(layers: LayerSource) -> Callable[[LayerFactors | LayerDeltas], Tensor]:
    """Add each task's kept singular components with learned coefficients; the stage `learn` chose both.

    It needs all singular vectors. Vectors are added whole.
    """
    learned = learned_by(layers, "adarank")
    return KeptComponents(layers, Settings(**learned.settings)).form(learned.values)
