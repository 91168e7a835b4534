"""TSV-Compress: a T-th of each task's singular triples."""

from merganser.inputs.layers import LayerFactors
from merganser.merging.method import PositiveFraction, method
from merganser.operators.shares import share_needed, triples_kept
from merganser.overlays.low_rank import low_rank_parts
from merganser.overlays.parts import Parts


@method(
    reads="svd",
    family="compressed",
    formula=r"\mathrm{SVD}_{r / T}(\Delta_t)",
    involvement="NDI",
    efficiency="Medium",
    paper="Gargiulo et al., CVPR 2025, arXiv:2412.00081",
    law="the tasks' parts together take the rank of one matrix",
    cost="svd",
    overlay=True,
    rank_fraction=share_needed,
)
def tsv_c(layer: LayerFactors, *, rank_fraction: PositiveFraction | None = None) -> Parts:
    """Keep a share of each task's singular triples, 1/T by default: all tasks together then take one matrix's rank."""
    return low_rank_parts(layer, triples_kept(layer, rank_fraction))
