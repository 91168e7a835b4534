"""Consensus merging: keep what several tasks want."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Count, Densities, NonNegative, Scaling, method, spaced
from merganser.operators.masks import mask_counts
from merganser.operators.ties import Combine, unscaled_merge


@method(
    family="sparse",
    formula=r"\lambda\, \mathbb{1}\Big[\sum_t m_t \ge k\Big] \odot M, "
    r"\quad m_t = \mathbb{1}\big[|\Delta_t| \ge \lambda_{tall} |M - \Delta_t|\big], "
    r"\quad M = \mathrm{inner}(\Delta_1, \ldots, \Delta_T)",
    involvement="VDI",
    paper="Wang et al., ICML 2024, arXiv:2405.07813",
    law="with k 0 it is task arithmetic",
    by_rows=True,
    ours=("tall_lambda", "density", "scaling"),
    searched={"tall_lambda": spaced(0.2, 0.6, 0.1), "scaling": spaced(0.1, 1.0, 0.1)},
    copies=5,
)
def consensus(
    layers: LayerSource,
    *,
    inner: Combine = "task_arithmetic",
    density: Densities = 0.2,
    tall_lambda: NonNegative = 0.4,
    k: Count = 2,
    scaling: Scaling = 0.4,
) -> Callable[[LayerDeltas], Tensor]:
    """Merge by `inner`, unscaled, and keep the entries where at least `k` of the tasks' TALL masks are set.

    A task's mask is set where its delta is at least `tall_lambda` times the rest of the merge: with task arithmetic
    the sum of the other tasks. `density` is what ties keeps of each whole task vector; as in the paper's code, ties
    adds up the tasks that agree.
    """
    inner_merge = unscaled_merge(layers, inner, density)

    def merge(layer: LayerDeltas) -> Tensor:
        merged = inner_merge(layer)
        wanted = mask_counts(layer.deltas, merged, tall_lambda) >= k
        return (merged * wanted).mul_(scaling).to(layer.dtype)

    return merge
