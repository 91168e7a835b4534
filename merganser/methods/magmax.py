"""MagMax: take each entry from the task that changed it most."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import by_blocks
from merganser.merging.method import Scaling, method


@method(
    family="sparse",
    formula=r"\lambda\, \Delta_{t^*}, \quad t^* = \operatorname{argmax}_t |\Delta_t|",
    paper="Marczak et al., ECCV 2024, arXiv:2407.06322",
    law="one task at scaling 1 is its own model; tasks that change different entries are added up",
    involvement="VDI",
    by_rows=True,
)
def magmax(layer: LayerDeltas, *, scaling: Scaling = 0.5) -> Tensor:
    """Take, entry by entry, the tasks' change of largest magnitude, and scale it.

    If two opposite changes are equally large, the positive one is taken; the authors' code takes the later task's.
    """
    return scaling * by_blocks(largest_change, layer.deltas, layer.dtype)


def largest_change(block: Tensor) -> Tensor:
    """Return the entry of largest magnitude among the tasks (T, C), the positive one of two that are equally large.

    >>> import torch
    >>> largest_change(torch.tensor([[1.0, -2.0, 3.0], [-4.0, 1.0, -3.0]]))
    tensor([-4., -2.,  3.])
    """
    high, low = block.amax(0), block.amin(0)
    return high.where(high >= -low, low)
