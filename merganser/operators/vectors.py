"""What becomes of parameters that are no linear maps, for methods that work on matrices."""

from typing import Any

from torch import Tensor

from merganser.layers import LayerDeltas
from merganser.overlays.parts import Dense, Parts


def scaled_mean(layer: LayerDeltas, *, scaling: float = 1.0, **_: Any) -> Tensor:
    """Average the tasks' deltas, times the method's scaling."""
    return scaling * layer.deltas.mean(0)


def mean(layer: LayerDeltas, **_: Any) -> Tensor:
    """Average the tasks' deltas, unscaled."""
    return layer.deltas.mean(0)


def whole(layer: LayerDeltas, **_: Any) -> Parts:
    """Keep each task's own delta whole, in float32, beside the base."""
    return Parts(tasks={task: Dense(delta) for task, delta in zip(layer.tasks, layer.deltas, strict=True)})
