"""EMR: elect one task vector, and modulate it for each task by a mask and a rescaler."""

from collections.abc import Callable
from functools import partial

import torch

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import by_blocks
from merganser.merging.method import method
from merganser.operators.masks import Rescaler, agrees, elected, ratio, sides
from merganser.overlays.parts import Masked, Parts, pack_bits


@method(
    family="masked",
    formula=r"\lambda_t\, \mathbb{1}[\Delta_t \odot M > 0] \odot M, \quad M = \mathrm{sgn}\Big(\sum_j \Delta_j\Big) "
    r"\odot \max_{j \text{ of that sign}} |\Delta_j|",
    efficiency="Medium",
    paper="Huang et al., NeurIPS 2024, arXiv:2405.17461",
    law="with one task it is exact; each task keeps its total magnitude, or comes as near as one factor lets it",
)
def emr(layers: LayerSource, *, rescaler: Rescaler = "magnitude") -> Callable[[LayerDeltas], Parts]:
    """Elect a sign and take the largest magnitude that has it; mask that for each task, and rescale it.

    A task's mask is where its own sign is the elected one. Its rescaler, one number for all parameters, gives the
    masked vector the task's total magnitude, as in the paper; `least_squares` is the number that brings it nearest to
    the task's delta, which the survey's proof takes for the same: docs/measures.md, "Bounds".
    """
    by_task = ratio(torch.stack(list(layers.map(partial(sides, rescaler=rescaler)))).sum(0)).float()

    def merge(layer: LayerDeltas) -> Parts:
        unified = by_blocks(elected, layer.deltas, layer.dtype)
        parts = {}
        for task, factor, delta in zip(layer.tasks, by_task, layer.deltas, strict=True):
            mask = agrees(delta, unified)
            if mask.any():
                parts[task] = Masked(pack_bits(mask), factor)
        return Parts(parts, unified=unified)

    return merge
