"""Consensus merging: keep what several tasks want."""

from typing import Any, Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, joined
from merganser.merging.method import Count, NonNegative, PositiveFraction, Scaling, method
from merganser.operators import inner as inner_merge
from merganser.operators.masks import wanted_by

Inner = Literal["task_arithmetic", "ties"]


def survey(layers: LayerSource, *, inner: Inner, density: float, **_: Any) -> inner_merge.WholeVector:
    """Learn of all layers what the inner merge takes."""
    return inner_merge.survey(layers, inner, density=density)


@method(
    reads="deltas",
    family="sparse",
    formula=r"\lambda\, \mathbb{1}\Big[\sum_t m_t \ge k\Big] \odot M, "
    r"\quad m_t = \mathbb{1}\big[|\Delta_t| \ge \lambda_{tall} |M - \Delta_t|\big], "
    r"\quad M = \mathrm{inner}(\Delta_1, \ldots, \Delta_T)",
    involvement="VDI",
    efficiency="High",
    paper="Wang et al., ICML 2024, arXiv:2405.07813",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
    ours=("tall_lambda", "density", "scaling"),
)
def consensus(
    layer: LayerDeltas,
    *,
    inner: Inner = "task_arithmetic",
    density: PositiveFraction = 0.2,
    tall_lambda: NonNegative = 0.4,
    k: Count = 2,
    scaling: Scaling | None = None,
) -> Tensor:
    """Merge by `inner`, unscaled, and keep the entries where at least `k` of the tasks' TALL masks are set.

    A task's mask is set where its delta is at least `tall_lambda` times what the merge has beside it: with task
    arithmetic what the other tasks add up to. `density` is what ties keeps of each whole task vector. `scaling` is by
    default 0.4 for task arithmetic and 1 for ties.
    """
    own = inner_merge.factor(inner, scaling)
    pairs = zip(blocks(layer.deltas), inner_merge.merged_blocks(layer, layer.prepared), strict=True)
    merged = (own * merged * (wanted_by(block, merged, tall_lambda) >= k) for block, merged in pairs)
    return joined(merged, layer.shape, layer.dtype, layer.deltas.device)
