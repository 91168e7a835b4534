"""EMR: elect one task vector, and modulate it for each task by a mask and a rescaler."""

import torch
from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.operators.elect import elect_sign
from merganser.operators.streams import each_deltas
from merganser.overlays.bits import pack_bits
from merganser.overlays.masked import Masked
from merganser.overlays.parts import Parts
from merganser.registry import method


def elected(deltas: Tensor) -> Tensor:
    """Take, entry by entry, the largest magnitude among the tasks (T, ...) of the elected sign, with that sign."""
    sign = elect_sign(deltas)
    largest = torch.zeros_like(sign)
    for delta in deltas:
        torch.maximum(largest, delta * sign, out=largest)
    return sign * largest


def agrees(delta: Tensor, unified: Tensor) -> Tensor:
    """Mark the entries in which a task has the unified vector's sign."""
    return (delta.sign() == unified.sign()) & (unified != 0)


def magnitudes(layer: LayerDeltas) -> Tensor:
    """Sum, in float64, the magnitudes of each task's own entries and of the elected ones under its mask: (T, 2)."""
    unified = elected(layer.deltas)
    pairs = ((delta, unified[agrees(delta, unified)]) for delta in layer.deltas)
    return torch.stack([torch.stack([side.abs().sum(dtype=torch.float64) for side in pair]) for pair in pairs])


def rescalers(layers: LayerSource) -> Tensor:
    """Return each task's rescaler (T,), from one pass over all layers; 0 for a task whose mask is empty."""
    own, masked = torch.stack(list(map(magnitudes, each_deltas(layers)))).sum(0).T
    return torch.where(masked > 0, own / masked, 0).float()


@method(
    reads="deltas",
    family="masked",
    formula=r"\lambda_t\, \mathbb{1}[\Delta_t \odot M > 0] \odot M, \quad M = \mathrm{sgn}\Big(\sum_j \Delta_j\Big) "
    r"\odot \max_{j \text{ of that sign}} |\Delta_j|",
    involvement="NDI",
    efficiency="Medium",
    paper="Huang et al., NeurIPS 2024, arXiv:2405.17461",
    cost="elementwise",
    overlay=True,
    vectors="alike",
    prepare=rescalers,
)
def emr(layer: LayerDeltas) -> Parts:
    """Elect a sign and take the largest magnitude that has it; mask that for each task, and rescale it.

    A task's mask is where its own sign is the elected one; its rescaler gives the masked vector the task's total
    magnitude, over all parameters.
    """
    unified = elected(layer.deltas)
    parts = {}
    for task, rescaler, delta in zip(layer.tasks, layer.prepared, layer.deltas, strict=True):
        mask = agrees(delta, unified)
        if mask.any():
            parts[task] = Masked(pack_bits(mask), rescaler)
    return Parts(parts, unified=unified)
