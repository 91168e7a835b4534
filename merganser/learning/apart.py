"""Several tasks, each learned by the loss of its own model: one state holds what all of them learn. Legend: T tasks."""

from collections.abc import Iterator, Sequence

import torch

from merganser.inputs.layers import LayerSource
from merganser.learning import Values
from merganser.learning.loop import Learnable


def apart(tasks: Sequence[Learnable], layers: LayerSource) -> Learnable:
    """Learn each task's own; the values are tensors (T, ...) of which each task has one row. Losses are added up.

    `layers`: of all tasks.
    """

    def each(values: Values) -> Iterator[tuple[Learnable, Values]]:
        for number, task in enumerate(tasks):
            yield task, {name: value[number : number + 1] for name, value in values.items()}

    def slope(values: Values, step: int) -> tuple[float, Values]:
        losses, gradients = zip(*(task.slope(own, step) for task, own in each(values)), strict=True)
        return sum(losses), _together(gradients)

    return Learnable(
        layers,
        batches=[batches for task in tasks for batches in task.batches],
        start=lambda: _together([task.start() for task in tasks]),
        slope=slope,
        check=lambda values: sum(task.check(own) for task, own in each(values)),
    )


def _together(rows: Sequence[Values]) -> Values:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
