"""Task arithmetic: add the task vectors."""

from typing import Any

from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.operators.coefficients import task_coefficients
from merganser.operators.sums import scaled_sum
from merganser.registry import Scaling, method


def check_names(layers: LayerSource, *, coefficients: dict[str, float] | None, **_: Any) -> None:
    """Refuse coefficients of unknown tasks before any layer is merged."""
    task_coefficients(layers.tasks, coefficients)


@method(
    reads="deltas",
    paper="Ilharco et al., ICLR 2023, arXiv:2212.04089",
    cost="elementwise",
    vectors="alike",
    prepare=check_names,
)
def task_arithmetic(
    layer: LayerDeltas, *, scaling: Scaling = 0.4, coefficients: dict[str, Scaling] | None = None
) -> Tensor:
    """Add the tasks' deltas, each times its coefficient, and scale the sum.

    A task that `coefficients` does not name has 1; a negative one forgets a task.
    """
    return scaled_sum(layer.deltas, scaling, task_coefficients(layer.tasks, coefficients))
