"""Trim each task's whole vector to its largest entries, one layer at a time (TIES, arXiv:2306.01708).

Legend: T tasks, C entries of a block. The share is of the whole vector: a parameter may lose all its entries.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks, is_looped
from merganser.linalg.counts import count_of
from merganser.linalg.patterns import levels_of
from merganser.linalg.select import Cut, cuts, each_trimmed
from merganser.linalg.thresholds import Change
from merganser.operators.passes import Stacks, Walkable


@dataclass(frozen=True)
class Trimmed:
    """The tasks' deltas (T, ...) of one layer with zeros for what a cut drops: a view, nothing is copied."""

    deltas: Tensor
    cut: Cut

    @property
    def shape(self) -> torch.Size:
        """Return (T, ...)."""
        return self.deltas.shape

    @property
    def dtype(self) -> torch.dtype:
        """Return the deltas' dtype."""
        return self.deltas.dtype

    @property
    def device(self) -> torch.device:
        """Return the deltas' device."""
        return self.deltas.device


Sparse = Tensor | Trimmed  # deltas (T, ...) of which most entries are zero


def trim(deltas: Tensor, cut: Cut) -> Trimmed:
    """Keep each task's entries (T, ...) that its cut keeps.

    >>> from merganser.linalg.patterns import patterns_of
    >>> half = int(patterns_of(torch.tensor([0.5])))
    >>> dense(trim(torch.tensor([[0.5, -2.0, 0.1, 0.5]]), Cut((half,), (1,))))  # one of those equal to 0.5
    tensor([[ 0.5000, -2.0000,  0.0000,  0.0000]])
    """
    return Trimmed(deltas, cut)


def dense(sparse: Sparse) -> Tensor:
    """Write the entries out, zeros and all: (T, ...)."""
    return torch.cat(list(blocks_of(sparse)), 1).view(sparse.shape)


def blocks_of(sparse: Sparse) -> Iterable[Tensor]:
    """Cut deltas (T, ...) into blocks (T, C), in reading order."""
    return each_trimmed(sparse.deltas, sparse.cut) if isinstance(sparse, Trimmed) else blocks(sparse)


def loop_arguments(sparse: Sparse) -> tuple[Tensor, Tensor] | None:
    """Return values (T, C) and the level (T) that a magnitude has to be above, for the compiled loops.

    None where these cannot take them: on a GPU, in another dtype, or where a level does not tell what is kept.
    """
    values, cut = (sparse.deltas, sparse.cut) if isinstance(sparse, Trimmed) else (sparse, None)
    if not is_looped(values) or (cut and any(cut.ties)):
        return None
    levels = levels_of(cut.patterns, values) if cut else values.new_zeros(len(values))
    return values.reshape(len(values), -1).contiguous(), levels


def layer_cuts(layers: Walkable, density: float, change: Change | None = None) -> dict[str, Cut]:
    """Find where each task's whole vector is cut, as it applies to each layer; or what `change` makes of its blocks."""
    found = cuts(Stacks(layers), partial(count_of, density), change)
    return dict(zip(layers.names, found, strict=True))
