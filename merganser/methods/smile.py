"""SMILE: low-rank experts of every linear map, one of them for each token."""

from typing import Annotated

from pydantic import Field

from merganser.at_run_time.additions import gates
from merganser.checkpoints.kinds import is_linear
from merganser.inputs.layers import LayerDeltas, LayerFactors
from merganser.merging.method import method
from merganser.operators.vectors import whole
from merganser.overlays.parts import Parts, low_rank_parts

PositiveCount = Annotated[int, Field(ge=1)]
PROJECTIONS = ("proj", "text_projection")  # parameters of their own, applied as x W


def biases(layer: LayerDeltas, **_: object) -> Parts:
    """Keep biases whole: those of linear maps go with their expert. Other vectors stay the base's."""
    return whole(layer) if layer.name.endswith("bias") else Parts()


def narrow(k: int, k_gate: int) -> str | None:
    """Say that experts have fewer right singular vectors than their gates read."""
    if k >= k_gate:
        return None
    return f"k_gate: is {k_gate}, and an expert keeps k={k} triples, which its gate reads; give k_gate at most k"


@method(
    family="routed",
    formula=r"U_{t^*} \Sigma_{t^*} V_{t^*}^\top x + \Delta b_{t^*}, "
    r"\quad t^* = \mathrm{argmax}_t \lVert V_{t, 1:k_{gate}}^\top x \rVert",
    paper="SMILE: Zero-Shot Sparse Mixture of Low-Rank Experts, 2024, arXiv:2408.10174",
    law="with all triples kept and the right expert each layer is the task's own; the choice ignores the size of x",
    ours=("k", "k_gate"),
    linear_maps=True,
    at_run_time=gates,
    not_by_layer=("k_gate",),
    refuses=narrow,
    vectors=biases,
)
def smile(layer: LayerFactors, *, k: PositiveCount = 32, k_gate: PositiveCount = 16) -> Parts:
    """Keep each task's `k` leading triples of every linear map, and its bias; each token and layer takes one expert.

    It is the one onto whose first `k_gate` right singular vectors the token's input projects with the largest norm, so
    that the gates need no bytes of their own. Inputs are evaluated without their task's label; each task's class head
    is given. Norms, embeddings, convolutions and projections that are not layers stay the base's.
    """
    is_layer = layer.name.rpartition(".")[2] not in PROJECTIONS
    return low_rank_parts(layer, k) if is_layer and is_linear(layer.name, layer.shape) else Parts()
