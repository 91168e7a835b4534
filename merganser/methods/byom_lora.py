"""BYOM-LoRA: a few singular triples of each task's delta, the same number for every matrix."""

from typing import Annotated, Any

from pydantic import Field

from merganser.inputs.factors import ALWAYS_KEPT
from merganser.inputs.layers import LayerFactors
from merganser.merging.method import method
from merganser.overlays.budget import BY_K
from merganser.overlays.parts import Parts, low_rank_parts


def share_needed(tasks: int, *, k: int, **_: Any) -> float:
    """Return the share of each spectrum that may be needed: what is kept of any matrix will do for a small `k`."""
    return 0.0 if k <= ALWAYS_KEPT else 1.0


@method(
    family="compressed",
    formula=r"\mathrm{SVD}_k(\Delta_t)",
    paper="Jiang et al., 2023, arXiv:2310.01886",
    law="at a rank of at least the deltas' each task gets its own model",
    ours=("k",),
    rank_fraction=share_needed,
    within=BY_K,
)
def byom_lora(layer: LayerFactors, *, k: Annotated[int, Field(ge=1)] = 16) -> Parts:
    """Keep the `k` leading singular triples of each task's matrices, fewer where the rank is lower; vectors whole.

    Made for models fine-tuned by adapters: their deltas have a low rank, and `k` of at least that is exact.
    """
    return low_rank_parts(layer, k)
