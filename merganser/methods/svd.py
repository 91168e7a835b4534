"""A low-rank delta per task: the plain way to compress a fine-tuned model."""

from merganser.layers import LayerFactors
from merganser.operators.shares import share_needed, triples_kept
from merganser.overlays.low_rank import low_rank_parts
from merganser.overlays.parts import Parts
from merganser.registry import PositiveFraction, method


@method(
    reads="svd",
    family="compressed",
    formula=r"\mathrm{SVD}_k(\Delta_t)",
    involvement="NDI",
    efficiency="Medium",
    paper="none (the best low-rank approximation)",
    cost="svd",
    overlay=True,
    rank_fraction=share_needed,
)
def svd(layer: LayerFactors, *, rank_fraction: PositiveFraction = 0.3) -> Parts:
    """Keep each task's leading singular triples, as float32 factors; the default has the rank of dts_t."""
    return low_rank_parts(layer, triples_kept(layer, rank_fraction))
