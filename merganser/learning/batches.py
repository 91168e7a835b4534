"""Which examples a step sees: a pure function of the seed, the task, the split and the step."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from merganser.operators.drop import generator_of

FIXED = 4  # batches of each task that values are compared on


@dataclass(frozen=True)
class Batches:
    """The examples of one task and split in an order drawn anew for every epoch, batch after batch.

    A batch that reaches the end of an epoch goes on in the next one, so all have one size.
    """

    seed: int
    task: str
    split: str
    count: int
    size: int

    def rows(self, number: int) -> list[int]:
        """Return the examples of a batch, which are counted from 0 on."""
        places = range(number * self.size, (number + 1) * self.size)
        return [_permutation(self, str(place // self.count))[place % self.count] for place in places]

    def order(self, name: str) -> tuple[int, ...]:
        """Return all examples in an order of this name."""
        return _permutation(self, name)

    def fixed(self) -> Iterator[list[int]]:
        """Return the batches that values are compared on, the same at every step; the last one may be smaller."""
        order = _permutation(self, "fixed")[: FIXED * self.size]
        return (list(order[start : start + self.size]) for start in range(0, len(order), self.size))


@lru_cache(maxsize=256)
def _permutation(of: Batches, epoch: str) -> tuple[int, ...]:
    drawn = torch.randperm(of.count, generator=generator_of(of.seed, of.task, f"{of.split} {epoch}"))
    return tuple(drawn.tolist())
