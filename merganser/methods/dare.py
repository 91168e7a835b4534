"""DARE: drop entries at random, rescale the rest, then merge as task arithmetic or TIES does."""

from typing import Any, Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Rate, Scaling, method
from merganser.operators import inner

Combine = Literal["task_arithmetic", "ties"]
MERGES: dict[Combine, inner.Inner] = {"task_arithmetic": "dare", "ties": "dare_ties"}


def survey(layers: LayerSource, *, combine: Combine, drop_rate: float, **_: Any) -> inner.WholeVector:
    """Find the sign that wins the vector, which only TIES asks for."""
    return inner.survey(layers, MERGES[combine], drop_rate=drop_rate)


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
    ours=("drop_rate", "scaling"),
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
    return inner.scaled(layer, layer.prepared, scaling)
