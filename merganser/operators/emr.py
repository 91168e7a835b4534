"""The steps of EMR-Merging (arXiv:2405.17461): elect one vector, mask it for each task, and rescale that.

Legend: T tasks, C entries of a block.
"""

from typing import Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks
from merganser.operators.elect import elect_sign

Rescaler = Literal["magnitude", "least_squares"]  # keep a task's total magnitude, or come nearest to its delta


def aligned(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the elected sign (C,), and the tasks' deltas (T, C) times it: those above 0 agree."""
    sign = elect_sign(block)
    return sign, block * sign


def elected(block: Tensor) -> Tensor:
    """Take, entry by entry, the largest magnitude among the tasks (T, ...) of the elected sign, with that sign.

    >>> elected(torch.tensor([[4.0, -1.0, 1.0], [1.0, -3.0, -1.0]]))
    tensor([ 4., -3.,  0.])
    """
    sign, agreeing = aligned(block)
    return agreeing.amax(0).clamp_(min=0).mul_(sign)


def agrees(deltas: Tensor, unified: Tensor) -> Tensor:
    """Mark the entries (T, ...) in which a task has the unified vector's sign."""
    return deltas * unified.sign() > 0


def sides(layer: LayerDeltas, rescaler: Rescaler) -> Tensor:
    """Sum, in float64, what each task's rescaler divides, and what it divides by: (2, T).

    The magnitudes of the task's own entries and of the elected ones under its mask; or the product of both vectors and
    the square of the latter.
    """
    sums = torch.zeros(2, len(layer.tasks), dtype=torch.float64, device=layer.deltas.device)
    for block in blocks(layer.deltas):
        agreeing = aligned(block)[1]
        masked = agreeing.sign().clamp_(min=0).mul_(agreeing.amax(0))
        if rescaler == "magnitude":
            pair = (block.abs(), masked)
        else:
            exact = masked.double()
            pair = (agreeing * exact, exact.square())
        sums += torch.stack([side.sum(1, dtype=torch.float64) for side in pair])
    return sums


def ratio(sums: Tensor) -> Tensor:
    """Divide the sums (2, T) of a whole vector: T rescalers, 0 of a task whose mask is empty."""
    own, masked = sums
    return torch.where(masked > 0, own / masked, 0)
