"""DTS-T: each task's leading singular triples, the vectors thresholded to two bits an element."""

from collections.abc import Callable
from typing import Any

from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, Truncation, method
from merganser.operators.coefficients import triples_kept
from merganser.overlays.budget import ADAPTIVE, THRESHOLDED, THRESHOLDED_VECTORS, Coding
from merganser.overlays.parts import Parts
from merganser.overlays.thresholded import Groups, Thresholds, thresholded_parts, thresholded_vectors

CODINGS: dict[Groups, Coding] = {"tensor": THRESHOLDED, "vector": THRESHOLDED_VECTORS}


def share_needed(tasks: int, *, decompose: bool, groups: Groups, **values: Any) -> float:
    """Return an upper bound of the share of each spectrum that is kept; all of it is thresholded as it is."""
    return CODINGS[groups].share_needed(tasks, **values) if decompose else 1.0


@method(
    family="compressed",
    formula=r"\hat U_t \Sigma_t \hat V_t^\top, \quad \hat U_t, \hat V_t \text{ in two bits an element}",
    paper="Stay Unique, Stay Efficient (DTS), 2025, arXiv:2512.01461",
    law="[1, 1, 5, -2, -9] becomes the paper's example; thresholding twice equals once; norms and signs are kept",
    vectors=thresholded_vectors,
    rank_fraction=share_needed,
    within=ADAPTIVE,
    copies=6,
)
def dts_t(
    layers: LayerSource,
    *,
    rank_fraction: Truncation = 0.3,
    ratio: PositiveFraction = 0.01,
    decompose: bool = True,
    thresholds: Thresholds = "medians",
    groups: Groups = "tensor",
    scaled: bool = True,
) -> Callable[[LayerFactors], Parts]:
    """Threshold U and V of each task's leading triples into four groups each, one scale a group; singular values stay.

    With `rank_fraction` adaptive (the paper's DTS-T*): the largest one, the same for all matrices, with which a
    task takes at most `ratio` of the float32 bytes of the merged parameters on disk. A matrix too small to keep a
    triple is thresholded directly, like a vector. The steps of the method can be taken out: without `decompose`
    every matrix is thresholded so; by `thresholds: signs` there are two groups, the positive and the negative;
    without `scaled` each group's scale is 1. `groups: vector` gives each singular vector its own groups and scales,
    as the paper's figure 2 reads, instead of eight scales a matrix, as its equations count: 32 bytes more a triple.
    """
    share = CODINGS[groups].share(layers, rank_fraction, ratio) if decompose else 0.0
    return lambda layer: thresholded_parts(layer, triples_kept(layer, share), thresholds, scaled, groups)
