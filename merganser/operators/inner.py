"""The merges of weights that stand alone or inside another method: in a joint basis (KnOTS), under masks (Consensus).

Each first makes the tasks' deltas sparse, or leaves them as they are, and then adds them or averages those who agree:

    task_arithmetic  as they are          sum
    ties             trim                 elect, disjoint mean
    dare             drop and rescale     sum
    dare_ties        drop and rescale     elect, disjoint mean

Legend: T tasks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from merganser.layers import Layer, LayerDeltas
from merganser.linalg.select import Cut
from merganser.operators.disjoint import elected_mean
from merganser.operators.drop import drop_layer
from merganser.operators.elect import balance_of, elect_sign, majority_of, winning_sign
from merganser.operators.streams import each_deltas
from merganser.operators.sums import total
from merganser.operators.trim import trim, with_cuts

Inner = Literal["task_arithmetic", "ties", "dare", "dare_ties"]
SCALINGS: dict[Inner, float] = {"task_arithmetic": 0.4, "ties": 1.0, "dare": 0.4, "dare_ties": 1.0}


@dataclass(frozen=True)
class WholeVector:
    """How to merge, and what there is to know of all layers for it: where to trim each, and the sign that won more."""

    inner: Inner
    drop_rate: float = 0.0
    cuts: dict[str, Cut] = field(default_factory=dict)
    majority: int = 1


def survey(layers: Iterable[Layer], inner: Inner, *, density: float = 1.0, drop_rate: float = 0.0) -> WholeVector:
    """Learn of all layers what merging one of them takes; the layers are read several times, one at a time.

    `density` is the share of each task's whole vector that ties keeps, `drop_rate` the share that dare drops.
    """
    if inner == "ties":
        return WholeVector(inner, drop_rate, *_trimmed(layers, density))
    if inner == "dare_ties":
        return WholeVector(
            inner, drop_rate, {}, winning_sign(map(partial(drop_layer, drop_rate=drop_rate), each_deltas(layers)))
        )
    return WholeVector(inner, drop_rate)


def merge(layer: LayerDeltas, whole: WholeVector) -> Tensor:
    """Merge one layer's deltas (T, ...), unscaled, into float64."""
    deltas = layer.deltas
    if whole.inner == "ties":
        deltas = trim(deltas, whole.cuts[layer.name])
    if whole.inner in ("dare", "dare_ties"):
        deltas = drop_layer(layer, whole.drop_rate)
    return elected_mean(deltas, whole.majority) if whole.inner in ("ties", "dare_ties") else total(deltas)


def factor(inner: Inner, scaling: float | None) -> float:
    """Return the scaling given, or else the inner method's own."""
    return SCALINGS[inner] if scaling is None else scaling


def scaled(layer: LayerDeltas, whole: WholeVector, scaling: float | None) -> Tensor:
    """Merge one layer and scale it, by default by the inner method's own factor; return the deltas' dtype."""
    return merge(layer, whole).mul_(factor(whole.inner, scaling)).to(layer.deltas.dtype)


def _trimmed(layers: Iterable[Layer], density: float) -> tuple[dict[str, Cut], int]:
    """Find where each layer is cut, and elect once to see which sign wins the trimmed vector."""
    cuts, balance = {}, 0
    for layer, cut in with_cuts(layers, density):
        cuts[layer.name] = cut
        balance += balance_of(elect_sign(trim(layer.deltas, cut)))
        del layer  # before the next is read
    return cuts, majority_of(balance)
