"""EMR: elect one task vector, and modulate it for each task by a mask and a rescaler."""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, by_blocks
from merganser.merging.method import method
from merganser.operators.elect import elect_sign
from merganser.overlays.bits import pack_bits
from merganser.overlays.masked import Masked
from merganser.overlays.parts import Parts


def aligned(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the elected sign (C,), and the tasks' deltas (T, C) times it: those above 0 agree."""
    sign = elect_sign(block)
    return sign, block * sign


def elected(block: Tensor) -> Tensor:
    """Take, entry by entry, the largest magnitude among the tasks (T, ...) of the elected sign, with that sign."""
    sign, agreeing = aligned(block)
    return agreeing.amax(0).clamp_(min=0).mul_(sign)


def agrees(deltas: Tensor, unified: Tensor) -> Tensor:
    """Mark the entries (T, ...) in which a task has the unified vector's sign."""
    return deltas * unified.sign() > 0


def magnitudes(layer: LayerDeltas) -> Tensor:
    """Sum, in float64, the magnitudes of each task's own entries and of the elected ones under its mask: (2, T)."""
    sums = torch.zeros(2, len(layer.tasks), dtype=torch.float64, device=layer.deltas.device)
    for block in blocks(layer.deltas):
        agreeing = aligned(block)[1]
        masked = agreeing.sign().clamp_(min=0).mul_(agreeing.amax(0))
        sums += torch.stack([side.sum(1, dtype=torch.float64) for side in (block.abs(), masked)])
    return sums


@method(
    family="masked",
    formula=r"\lambda_t\, \mathbb{1}[\Delta_t \odot M > 0] \odot M, \quad M = \mathrm{sgn}\Big(\sum_j \Delta_j\Big) "
    r"\odot \max_{j \text{ of that sign}} |\Delta_j|",
    efficiency="Medium",
    paper="Huang et al., NeurIPS 2024, arXiv:2405.17461",
    law="with one task it is exact; each task keeps its total magnitude",
)
def emr(layers: LayerSource) -> Callable[[LayerDeltas], Parts]:
    """Elect a sign and take the largest magnitude that has it; mask that for each task, and rescale it.

    A task's mask is where its own sign is the elected one; its rescaler gives the masked vector the task's total
    magnitude, over all parameters.
    """
    own, masked = torch.stack(list(layers.map(magnitudes))).sum(0)
    by_task = torch.where(masked > 0, own / masked, 0).float()  # 0 for a task whose mask is empty

    def merge(layer: LayerDeltas) -> Parts:
        unified = by_blocks(elected, layer.deltas, layer.dtype)
        parts = {}
        for task, rescaler, delta in zip(layer.tasks, by_task, layer.deltas, strict=True):
            mask = agrees(delta, unified)
            if mask.any():
                parts[task] = Masked(pack_bits(mask), rescaler)
        return Parts(parts, unified=unified)

    return merge
