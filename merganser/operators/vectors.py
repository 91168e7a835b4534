"""How methods that work on matrices merge the parameters that are not linear maps."""

from typing import Any

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.operators.sums import scaled_sum
from merganser.overlays.parts import Dense, Parts


def scaled_mean(layer: LayerDeltas, *, scaling: float = 1.0, **_: Any) -> Tensor:
    """Average the tasks' deltas and multiply by the method's scaling.

    >>> import torch
    >>> scaled_mean(LayerDeltas("bias", "vector", ("a", "b"), torch.tensor([[1.0], [3.0]])), scaling=0.5)
    tensor([1.])
    """
    return scaled_sum(layer.deltas, scaling / len(layer.tasks))


def whole(layer: LayerDeltas, **_: Any) -> Parts:
    """Keep each task's own complete delta, in float32, next to the base.

    >>> import torch
    >>> whole(LayerDeltas("bias", "vector", ("a", "b"), torch.tensor([[1.0], [3.0]]))).tasks["b"].values
    tensor([3.])
    """
    return Parts(tasks={task: Dense(delta) for task, delta in zip(layer.tasks, layer.deltas, strict=True)})
