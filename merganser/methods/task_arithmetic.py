"""Task arithmetic: add the task vectors."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Scaling, method, spaced
from merganser.operators.sums import scaled_sum


@method(
    family="arithmetic",
    formula=r"\lambda \sum_t \Delta_t",
    paper="Ilharco et al., ICLR 2023, arXiv:2212.04089",
    law="one task at scaling 1 is its own model; opposite tasks cancel",
    involvement="VDI",
    by_rows=True,
    searched={"scaling": spaced(0.1, 1.0, 0.1)},
)
def task_arithmetic(layer: LayerDeltas, *, scaling: Scaling = 0.4) -> Tensor:
    """Add the tasks' deltas and scale the sum; a negative coefficient forgets a task."""
    return scaled_sum(layer.deltas, scaling)
