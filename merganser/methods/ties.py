"""TIES: trim, elect a sign, average those who agree."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.linalg.select import Cut
from merganser.operators.disjoint import disjoint_mean
from merganser.operators.elect import balance_of, elect_sign, majority_of, settle_draws
from merganser.operators.trim import trim, with_cuts
from merganser.registry import PositiveFraction, Scaling, method


@dataclass(frozen=True)
class WholeVector:
    """What TIES must know of all layers: where to trim, and the sign that won more entries."""

    cuts: dict[str, Cut]
    majority: int


def survey(layers: LayerSource, *, density: float, **_: Any) -> WholeVector:
    """Find the cuts, and elect once to see which sign wins the vector."""
    cuts, balance = {}, 0
    for layer, cut in with_cuts(layers, density):
        cuts[layer.name] = cut
        balance += balance_of(elect_sign(trim(layer.deltas, cut)))
    return WholeVector(cuts, majority_of(balance))


@method(
    reads="deltas",
    family="sparse",
    formula=r"\frac{\lambda}{|A|} \sum_{t \in A} \mathrm{trim}(\Delta_t), "
    r"\quad A = \{t : \mathrm{sgn}\, \mathrm{trim}(\Delta_t) = \mathrm{sgn} \sum_j \mathrm{trim}(\Delta_j)\}",
    involvement="VDI",
    efficiency="High",
    paper="Yadav et al., NeurIPS 2023, arXiv:2306.01708",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
)
def ties(layer: LayerDeltas, *, density: PositiveFraction = 0.2, scaling: Scaling = 1.0) -> Tensor:
    """Keep each task's largest entries, elect a sign per entry, average the tasks that agree.

    `density` is a share of the whole task vector. An entry whose elected sign is 0 takes the sign that wins the vector.
    """
    whole: WholeVector = layer.prepared
    trimmed = trim(layer.deltas, whole.cuts[layer.name])
    return scaling * disjoint_mean(trimmed, settle_draws(elect_sign(trimmed), whole.majority))
