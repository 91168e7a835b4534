"""DELLA: drop entries at random, small ones more often; rescale the rest, elect a sign, average those who agree."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import NonNegative, Rates, Scaling, method
from merganser.operators.coefficients import each_of
from merganser.operators.drop import dropped_by_magnitude, largest_of
from merganser.operators.ties import disjoint_mean, elect_sign, winning_sign


def check(drop_rates: Sequence[float], eps: float) -> None:
    """Raise InputError where a rate would not be a probability below 1: they span `eps` around each drop rate."""
    for rate in drop_rates:
        if not eps / 2 <= rate < 1 - eps / 2:
            most = 2 * min(rate, 1 - rate)
            raise InputError(f"eps: {eps} around a drop_rate of {rate} leaves [0, 1); choose eps below {most:g}")


@method(
    family="sparse",
    formula=r"\frac{\lambda}{|A|} \sum_{t \in A} \frac{(1 - m_t) \odot \Delta_t}{1 - p_t}, "
    r"\quad m_t \sim \mathrm{Bernoulli}(p_t), \quad p_t = p - \frac{\epsilon}{2} + \frac{\epsilon}{n} "
    r"\mathrm{rank}_{\downarrow}(|\Delta_t|), \quad A \text{ as in TIES}",
    paper="Deep et al., 2024, arXiv:2406.11617",
    law="without a spread (eps 0) it is DARE combined by TIES; the mean over seeds is the undropped delta",
    by_rows=True,
    ours=("drop_rate", "eps", "scaling"),
    draws=lambda drop_rate, eps, **_: largest_of(drop_rate) > 0 or eps > 0,
    copies=5,
)
def della(
    layers: LayerSource, *, drop_rate: Rates = 0.8, eps: NonNegative = 0.1, scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Drop entries with probabilities that fall with their magnitude in their row, rescale, and merge as TIES does.

    The probabilities span `eps` around `drop_rate`: the largest of a row is dropped least. With eps 0 this is DARE
    combined by TIES, with the same random numbers.
    """
    check(each_of(drop_rate, layers.tasks), eps)
    drop = partial(dropped_by_magnitude, drop_rate=drop_rate, eps=eps)
    winner = winning_sign(layers, drop)

    def merge(layer: LayerDeltas) -> Tensor:
        sparse = drop(layer)
        sign = elect_sign(sparse, winner)
        return scaling * disjoint_mean(sparse, sign)

    return merge
