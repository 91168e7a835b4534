"""DELLA: drop entries at random, small ones more often; rescale the rest, elect a sign, average those who agree."""

from functools import partial
from typing import Any

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import joined
from merganser.merging.method import NonNegative, Rate, Scaling, method
from merganser.operators.disjoint import elected_mean
from merganser.operators.drop import each_dropped_by_magnitude
from merganser.operators.elect import winning_sign


def survey(layers: LayerSource, *, drop_rate: float, eps: float, **_: Any) -> int:
    """Find the sign that wins the vector. Raises InputError where an entry would be dropped for sure, or less than 0.

    The rates spread by eps/2 to both sides of drop_rate and have to stay probabilities.
    """
    if not eps / 2 <= drop_rate < 1 - eps / 2:
        room = 2 * min(drop_rate, 1 - drop_rate)
        raise InputError(f"eps: {eps} around a drop_rate of {drop_rate} leaves [0, 1); choose eps below {room:g}")
    return winning_sign(layers, partial(each_dropped_by_magnitude, drop_rate=drop_rate, eps=eps))


@method(
    reads="deltas",
    family="sparse",
    formula=r"\frac{\lambda}{|A|} \sum_{t \in A} \frac{(1 - m_t) \odot \Delta_t}{1 - p_t}, "
    r"\quad m_t \sim \mathrm{Bernoulli}(p_t), \quad p_t = p - \frac{\epsilon}{2} + \frac{\epsilon}{n} "
    r"\mathrm{rank}_{\downarrow}(|\Delta_t|), \quad A \text{ as in TIES}",
    involvement="NDI",
    efficiency="High",
    paper="Deep et al., 2024, arXiv:2406.11617",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
    ours=("drop_rate", "eps", "scaling"),
)
def della(layer: LayerDeltas, *, drop_rate: Rate = 0.8, eps: NonNegative = 0.1, scaling: Scaling = 1.0) -> Tensor:
    """Drop entries with probabilities that fall with their magnitude in their row, rescale, and merge as TIES does.

    The probabilities span `eps` around `drop_rate`: the largest of a row is dropped least. With eps 0 this is DARE
    combined by TIES, with the same random numbers.
    """
    sparse = each_dropped_by_magnitude(layer, drop_rate, eps)
    merged = (elected_mean(block, layer.prepared).mul_(scaling) for block in sparse)
    return joined(merged, layer.shape, layer.dtype, layer.deltas.device)
