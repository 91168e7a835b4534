"""A task's data, prepared: arrays of one row an example, read batch by batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class Prepared(Protocol):
    """Arrays of one row an example, by name, and the classes' names, if the kind has any."""

    @property
    def classes(self) -> Sequence[str]:
        """Return the names of the labels."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def array(self, name: str) -> Tensor:
        """Read one array whole."""

    def batches(self, names: Sequence[str], size: int) -> Iterator[dict[str, Tensor]]:
        """Read some arrays, so many rows at a time, all of them in order."""


@dataclass(frozen=True)
class InMemory:
    """Prepared data in memory."""

    arrays: Mapping[str, Tensor]
    classes: Sequence[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def array(self, name: str) -> Tensor:
        """Return one array."""
        return self.arrays[name]

    def batches(self, names: Sequence[str], size: int) -> Iterator[dict[str, Tensor]]:
        """Cut some arrays into so many rows at a time."""
        for start in range(0, len(self), size):
            yield {name: self.arrays[name][start : start + size] for name in names}


def in_memory(chunks: Iterator[Mapping[str, Tensor]], classes: Sequence[str] = ()) -> InMemory:
    """Keep what a kind prepares in memory."""
    gathered = list(chunks)
    return InMemory({name: torch.cat([chunk[name] for chunk in gathered]) for name in gathered[0]}, classes)
