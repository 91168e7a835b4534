"""The examples of each step: a function of the seed, the task, the split and the step alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from merganser.operators.drop import generator_of

FIXED = 4  # batches of each task that values are compared on


@dataclass(frozen=True)
class Batches:
    """The examples of one task and split, in batches; each epoch has a new random order.

    A batch at the end of an epoch continues in the next one, so all batches have one size.
    """

    seed: int
    task: str
    split: str
    count: int
    size: int

    def rows(self, number: int) -> list[int]:
        """Return the examples of a batch; batches are numbered from 0."""
        places = range(number * self.size, (number + 1) * self.size)
        return [_permutation(self, str(place // self.count))[place % self.count] for place in places]

    def order(self, name: str) -> tuple[int, ...]:
        """Return all examples in the random order of this name."""
        return _permutation(self, name)

    def fixed(self) -> Iterator[list[int]]:
        """Return the batches that compare values, the same at every step; the last one may be smaller."""
        order = _permutation(self, "fixed")[: FIXED * self.size]
        return (list(order[start : start + self.size]) for start in range(0, len(order), self.size))


@lru_cache(maxsize=256)
def _permutation(of: Batches, epoch: str) -> tuple[int, ...]:
    drawn = torch.randperm(of.count, generator=generator_of(of.seed, of.task, f"{of.split} {epoch}"))
    return tuple(drawn.tolist())
