"""DARE: drop entries at random, rescale the rest, then merge as task arithmetic or TIES does."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Rates, Scaling, method
from merganser.operators.drop import drop_layer, drops
from merganser.operators.sums import scaled_sum
from merganser.operators.ties import Combine, disjoint_mean, elect_sign, scaling_of, winning_sign


@method(
    family="sparse",
    formula=r"\lambda \sum_t \frac{(1 - m_t) \odot \Delta_t}{1 - p}, \quad m_t \sim \mathrm{Bernoulli}(p)",
    involvement="VDI",
    paper="Yu et al., ICML 2024, arXiv:2311.03099",
    law="with nothing dropped it is the method it combines by; the mean over seeds is the undropped sum",
    by_rows=True,
    ours=("drop_rate", "scaling"),
    draws=drops,
    searched={"drop_rate": (0.1, 0.3, 0.5, 0.7, 0.9), "scaling": (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)},
    copies=5,
)
def dare(
    layers: LayerSource,
    *,
    combine: Combine = "task_arithmetic",
    drop_rate: Rates = 0.8,
    scaling: Scaling | None = None,
) -> Callable[[LayerDeltas], Tensor]:
    """Drop each entry with probability `drop_rate`, divide the rest by 1 - drop_rate, and `combine`.

    With ties the drop takes the place of the trim. `scaling` is by default 0.4 for task arithmetic and 1 for ties.
    """
    drop, factor = partial(drop_layer, drop_rate=drop_rate), scaling_of(combine, scaling)
    if combine == "task_arithmetic":
        return lambda layer: scaled_sum(drop(layer), factor)
    winner = winning_sign(layers, drop)

    def merge(layer: LayerDeltas) -> Tensor:
        sparse = drop(layer)
        sign = elect_sign(sparse, winner)
        return factor * disjoint_mean(sparse, sign)

    return merge
