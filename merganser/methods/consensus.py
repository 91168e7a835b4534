"""Consensus merging: keep what several tasks want."""

from torch import Tensor

from merganser.layers import LayerDeltas
from merganser.operators.masks import wanted_by
from merganser.operators.sums import scaled_sum
from merganser.registry import Count, NonNegative, Scaling, method


@method(
    reads="deltas",
    family="sparse",
    formula=r"\lambda\, \mathbb{1}\Big[\sum_t m_t \ge k\Big] \odot M, "
    r"\quad m_t = \mathbb{1}\big[|\Delta_t| \ge \lambda_{tall} |M - \Delta_t|\big]",
    involvement="VDI",
    efficiency="High",
    paper="Wang et al., ICML 2024, arXiv:2405.07813",
    cost="elementwise",
    vectors="alike",
)
def consensus(layer: LayerDeltas, *, tall_lambda: NonNegative = 0.4, k: Count = 2, scaling: Scaling = 0.4) -> Tensor:
    """Add the tasks' deltas where at least `k` of their TALL masks are set.

    A task's mask is set where its delta is at least `tall_lambda` times what the other tasks add up to.
    """
    return scaled_sum(layer.deltas, scaling) * (wanted_by(layer.deltas, tall_lambda) >= k)
