"""The merges of weights that stand alone or inside another method: in a joint basis (KnOTS), under masks (Consensus).

Each first makes the tasks' deltas sparse, or leaves them as they are, and then adds them or averages those who agree:

    task_arithmetic  as they are          sum
    ties             trim                 elect, disjoint mean
    dare             drop and rescale     sum
    dare_ties        drop and rescale     elect, disjoint mean

Legend: T tasks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from torch import Tensor, float64

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks, is_looped, joined
from merganser.linalg.select import Cut, each_trimmed
from merganser.operators.disjoint import elected_mean, trimmed_mean
from merganser.operators.drop import each_dropped
from merganser.operators.elect import majority_of, winning_sign
from merganser.operators.streams import Stream
from merganser.operators.sums import total
from merganser.operators.trim import layer_cuts_and_balance

Inner = Literal["task_arithmetic", "ties", "dare", "dare_ties"]
SCALINGS: dict[Inner, float] = {"task_arithmetic": 0.4, "ties": 1.0, "dare": 0.4, "dare_ties": 1.0}


@dataclass(frozen=True)
class WholeVector:
    """How to merge, and what there is to know of all layers for it: where to trim each, and the sign that won more."""

    inner: Inner
    drop_rate: float = 0.0
    cuts: dict[str, Cut] = field(default_factory=dict)
    majority: int = 1


def survey(layers: Stream, inner: Inner, *, density: float = 1.0, drop_rate: float = 0.0) -> WholeVector:
    """Learn of all layers what merging one of them takes; the layers are read several times.

    `density` is the share of each task's whole vector that ties keeps, `drop_rate` the share that dare drops.
    """
    cuts, balance = layer_cuts_and_balance(layers, density) if inner == "ties" else ({}, None)
    whole = WholeVector(inner, drop_rate, cuts)
    if not elects(inner):
        return whole
    sign = winning_sign(layers, partial(_sparse, whole=whole)) if balance is None else majority_of(balance)
    return replace(whole, majority=sign)


def merged_blocks(layer: LayerDeltas, whole: WholeVector) -> Iterator[Tensor]:
    """Merge one layer's deltas (T, ...), unscaled, into float64: block by block (C,), as `blocks` cuts the deltas."""
    for block in _sparse(layer, whole):
        yield elected_mean(block, whole.majority) if elects(whole.inner) else total(block)


def merge(layer: LayerDeltas, whole: WholeVector) -> Tensor:
    """Merge one layer's deltas (T, ...), unscaled, into float64."""
    return joined(merged_blocks(layer, whole), layer.shape, float64, layer.deltas.device)


def elects(inner: Inner) -> bool:
    """Tell whether the merge elects a sign and averages who agrees; otherwise it adds."""
    return inner in ("ties", "dare_ties")


def factor(inner: Inner, scaling: float | None) -> float:
    """Return the scaling given, or else the inner method's own."""
    return SCALINGS[inner] if scaling is None else scaling


def scaled(layer: LayerDeltas, whole: WholeVector, scaling: float | None) -> Tensor:
    """Merge one layer and scale it, by default by the inner method's own factor; return the deltas' dtype."""
    own = factor(whole.inner, scaling)
    if whole.inner == "ties" and is_looped(layer.deltas) and not any(whole.cuts[layer.name].ties):
        return trimmed_mean(layer.deltas, whole.cuts[layer.name], whole.majority, own)
    merged = (block.mul_(own) for block in merged_blocks(layer, whole))
    return joined(merged, layer.shape, layer.dtype, layer.deltas.device)


def _sparse(layer: LayerDeltas, whole: WholeVector) -> Iterable[Tensor]:
    """Give the tasks' deltas, made sparse or as they are, in blocks (T, C)."""
    if whole.inner == "ties":
        return each_trimmed(layer.deltas, whole.cuts[layer.name])
    if whole.inner == "task_arithmetic":
        return blocks(layer.deltas)
    return each_dropped(layer, whole.drop_rate)
