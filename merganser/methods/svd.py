"""A low-rank delta per task: the plain way to compress a fine-tuned model."""

from collections.abc import Callable

from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, Truncation, method
from merganser.operators.coefficients import triples_kept
from merganser.overlays.budget import ADAPTIVE, LOW_RANK
from merganser.overlays.parts import Parts, low_rank_parts


@method(
    family="compressed",
    formula=r"\mathrm{SVD}_k(\Delta_t)",
    paper="none (the best low-rank approximation)",
    law="at rank fraction 1 each task gets its own model",
    ours=("rank_fraction", "ratio"),
    rank_fraction=LOW_RANK.share_needed,
    within=ADAPTIVE,
)
def svd(
    layers: LayerSource, *, rank_fraction: Truncation = 0.3, ratio: PositiveFraction = 0.01
) -> Callable[[LayerFactors], Parts]:
    """Keep each task's leading singular triples, in the dtype of the factors; the default has the rank of dts_t.

    With `rank_fraction` adaptive: the largest one, the same for all matrices, with which a task takes at most `ratio`
    of the float32 bytes of the merged parameters on disk. Vectors are kept whole.
    """
    share = LOW_RANK.share(layers, rank_fraction, ratio)
    return lambda layer: low_rank_parts(layer, triples_kept(layer, share))
