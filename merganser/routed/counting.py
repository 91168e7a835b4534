"""How often each task was chosen. Legend: T tasks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Counts:
    """Where what was computed went: tokens and layers, or examples and blocks."""

    tasks: tuple[str, ...]
    counts: Tensor = field(init=False)  # (T,)

    def __post_init__(self) -> None:
        self.counts = torch.zeros(len(self.tasks), dtype=torch.int64)

    def take(self, choice: Tensor) -> None:
        """Count the tasks that were chosen, given by their numbers."""
        self.counts += torch.bincount(choice.cpu(), minlength=len(self.tasks))

    def accuracy(self, task: str) -> float:
        """Return a task's share."""
        return float(self.counts[self.tasks.index(task)] / self.counts.sum())
