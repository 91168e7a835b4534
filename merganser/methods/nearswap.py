"""NearSwap: take a task's entries as far as they are small, and the others up to a limit."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import by_blocks
from merganser.merging.method import NonNegative, Scaling, method


@method(
    family="arithmetic",
    formula=r"\lambda \sum_t \max\bigl(-l, \min(\Delta_t, l)\bigr)",
    paper="none (alchemonaut's, in mergekit)",
    law="an entry within the limit is kept, and no task changes an entry by more than the limit",
    by_rows=True,
    ours=("scaling",),
)
def nearswap(layer: LayerDeltas, *, limit: NonNegative = 1e-4, scaling: Scaling = 1.0) -> Tensor:
    """Add the tasks' deltas, each entry cut off at the limit.

    Published for one task, as the step from the base to another model where both are nearest; of several, what is cut
    off is added up. mergekit calls the limit `t`; the default is its first user's.
    """

    def clipped(block: Tensor) -> Tensor:
        return block.double().clamp(-limit, limit).sum(0).mul_(scaling)

    return by_blocks(clipped, layer.deltas, layer.dtype)
