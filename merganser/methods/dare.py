"""DARE: drop entries at random, rescale the rest, then merge as task arithmetic or TIES does."""

from typing import Any, Literal

import torch
from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.operators.disjoint import disjoint_mean
from merganser.operators.drop import drop_and_rescale
from merganser.operators.elect import balance_of, elect_sign, majority_of, settle_draws
from merganser.operators.streams import each_deltas
from merganser.operators.sums import scaled_sum
from merganser.registry import Rate, Scaling, method

Combine = Literal["task_arithmetic", "ties"]
SCALINGS: dict[Combine, float] = {"task_arithmetic": 0.4, "ties": 1.0}  # each inner method's own default


def dropped(layer: LayerDeltas, drop_rate: float) -> Tensor:
    """Drop and rescale each task's delta with its own random numbers."""
    pairs = zip(layer.tasks, layer.deltas, strict=True)
    return torch.stack(
        [drop_and_rescale(d, drop_rate, seed=layer.seed, task=task, parameter=layer.name) for task, d in pairs]
    )


def survey(layers: LayerSource, *, drop_rate: float, combine: Combine, **_: Any) -> int | None:
    """Find the sign that wins the vector, which only TIES asks for."""
    if combine != "ties":
        return None
    return majority_of(sum(balance_of(elect_sign(dropped(layer, drop_rate))) for layer in each_deltas(layers)))


@method(
    reads="deltas",
    family="sparse",
    formula=r"\lambda \sum_t \frac{(1 - m_t) \odot \Delta_t}{1 - p}, \quad m_t \sim \mathrm{Bernoulli}(p)",
    involvement="VDI",
    efficiency="High",
    paper="Yu et al., ICML 2024, arXiv:2311.03099",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
)
def dare(
    layer: LayerDeltas,
    *,
    combine: Combine = "task_arithmetic",
    drop_rate: Rate = 0.8,
    scaling: Scaling | None = None,
) -> Tensor:
    """Drop each entry with probability `drop_rate`, divide the rest by 1 - drop_rate, and `combine`.

    With ties the drop takes the place of the trim. `scaling` is by default 0.4 for task arithmetic and 1 for ties.
    """
    deltas = dropped(layer, drop_rate)
    factor = SCALINGS[combine] if scaling is None else scaling
    if combine == "task_arithmetic":
        return scaled_sum(deltas, factor)
    return factor * disjoint_mean(deltas, settle_draws(elect_sign(deltas), layer.prepared))
