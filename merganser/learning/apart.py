"""Several tasks, each learned by the loss of its own model: one state holds what all of them learn. Legend: T tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from merganser.inputs.layers import LayerSource
from merganser.learning import Values
from merganser.learning.batches import Batches
from merganser.learning.loop import Problem


@dataclass(frozen=True)
class Apart:
    """One problem a task; the values are tensors (T, ...) of which each problem has one row. Losses are added up."""

    problems: Sequence[Problem]
    layers: LayerSource  # of all tasks

    @property
    def batches(self) -> Sequence[Batches]:
        """Return each task's examples."""
        return [batches for problem in self.problems for batches in problem.batches]

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """Name no block: values form weights."""
        return {}

    def start(self) -> Values:
        """Return the values that each problem begins with."""
        return _together([problem.start() for problem in self.problems])

    def slope(self, values: Values, step: int) -> tuple[float, Values]:
        """Return the loss on a step's batches, and its gradient with respect to the values."""
        losses, gradients = zip(*(each.slope(own, step) for each, own in self._each(values)), strict=True)
        return sum(losses), _together(gradients)

    def check(self, values: Values) -> float:
        """Return the loss on the fixed examples, without noise."""
        return sum(each.check(own) for each, own in self._each(values))

    def _each(self, values: Values) -> Iterator[tuple[Problem, Values]]:
        for number, problem in enumerate(self.problems):
            yield problem, {name: value[number : number + 1] for name, value in values.items()}


def _together(rows: Sequence[Values]) -> Values:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
