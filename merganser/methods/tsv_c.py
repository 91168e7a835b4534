"""TSV-Compress: a T-th of each task's singular triples."""

from collections.abc import Callable

from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, method
from merganser.methods.svd import svd
from merganser.operators.coefficients import share_needed
from merganser.overlays.parts import Parts


@method(
    family="compressed",
    formula=r"\mathrm{SVD}_{r / T}(\Delta_t)",
    paper="Gargiulo et al., CVPR 2025, arXiv:2412.00081",
    law="the tasks' parts together take the rank of one matrix",
    rank_fraction=share_needed,
)
def tsv_c(layers: LayerSource, *, rank_fraction: PositiveFraction | None = None) -> Callable[[LayerFactors], Parts]:
    """Keep a share of each task's singular triples, 1/T by default: all tasks together then take one matrix's rank."""
    return svd(layers, rank_fraction=share_needed(len(layers.tasks), rank_fraction=rank_fraction))
