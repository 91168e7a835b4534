"""The two ways to combine sparse deltas: add them, or average the tasks that agree. Legend: T tasks."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.operators.coefficients import PerTask
from merganser.operators.disjoint import disjoint_sum
from merganser.operators.elect import cut_and_winner, elect_sign
from merganser.operators.sums import total
from merganser.operators.trim import trim

Combine = Literal["task_arithmetic", "ties"]
SCALINGS: dict[Combine, float] = {"task_arithmetic": 0.4, "ties": 1.0}


def scaling_of(combine: Combine, scaling: float | None) -> float:
    """Return the given scaling, or the default of `combine`.

    >>> scaling_of("ties", None), scaling_of("ties", 0.7)
    (1.0, 0.7)
    """
    return SCALINGS[combine] if scaling is None else scaling


def unscaled_merge(layers: LayerSource, combine: Combine, density: PerTask) -> Callable[[LayerDeltas], Tensor]:
    """Return a function that merges a layer for its masks: by task arithmetic or TIES, unscaled and in float64.

    TIES adds up the tasks that agree, as the code of TALL masks does. A mask compares a delta with the merge minus that
    delta, which rounding the merge would change.
    """
    if combine == "task_arithmetic":
        return lambda layer: total(layer.deltas)
    cut, winner = cut_and_winner(layers, density)

    def merge(layer: LayerDeltas) -> Tensor:
        trimmed = trim(layer.deltas, cut)
        return disjoint_sum(trimmed, elect_sign(trimmed, winner), torch.float64)

    return merge
