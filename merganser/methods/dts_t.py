"""DTS-T: each task's leading singular triples, the vectors thresholded to two bits an element."""

from typing import Any

from merganser.layers import LayerDeltas, LayerFactors
from merganser.linalg.svd import leading, rebuilt
from merganser.operators.shares import share_needed, triples_kept
from merganser.overlays.low_rank import whole_factors
from merganser.overlays.parts import Parts
from merganser.overlays.thresholded import threshold, threshold_factors
from merganser.registry import PositiveFraction, method


def thresholded_vectors(layer: LayerDeltas, **_: Any) -> Parts:
    """Threshold each task's delta directly; one that is all zeros stores nothing."""
    pairs = zip(layer.tasks, layer.deltas, strict=True)
    return Parts({task: threshold(delta) for task, delta in pairs if delta.any()})


@method(
    reads="svd",
    family="compressed",
    formula=r"\hat U_t \Sigma_t \hat V_t^\top, \quad \hat U_t, \hat V_t \text{ in two bits an element}",
    involvement="NDI",
    efficiency="Medium",
    paper="Stay Unique, Stay Efficient (DTS), 2025, arXiv:2512.01461",
    cost="svd",
    overlay=True,
    vectors=thresholded_vectors,
    rank_fraction=share_needed,
)
def dts_t(layer: LayerFactors, *, rank_fraction: PositiveFraction = 0.3) -> Parts:
    """Threshold U and V of each task's leading triples into four groups each, one scale a group; singular values stay.

    A matrix too small to keep a triple is thresholded directly, like a vector.
    """
    count = triples_kept(layer, rank_fraction)
    if count == 0:
        return Parts({task: threshold(rebuilt(f)) for task, f in whole_factors(layer).items()})
    kept = {task: leading(f, count) for task, f in zip(layer.tasks, layer.factors, strict=True)}
    return Parts({task: threshold_factors(f) for task, f in kept.items() if len(f.s)})
