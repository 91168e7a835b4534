"""Trim each task's whole vector to its largest entries, one layer at a time (TIES, arXiv:2306.01708).

Legend: T tasks, C entries of a block. The density applies to the whole vector: a parameter may lose all its entries.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerSource
from merganser.linalg.blocks import blocks, is_looped
from merganser.linalg.counts import count_of
from merganser.linalg.select import Cut, cut_of, each_trimmed
from merganser.linalg.thresholds import Change
from merganser.operators.coefficients import PerTask, each_of
from merganser.operators.passes import over_stacks


@dataclass(frozen=True)
class Trimmed:
    """The tasks' deltas (T, ...) of one layer with zeros for the entries that a cut drops: a lazy view, not a copy."""

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

    >>> dense(trim(torch.tensor([[0.5, -2.0, 0.1, 1.0]]), (0.5,)))
    tensor([[ 0., -2.,  0.,  1.]])
    """
    return Trimmed(deltas, cut)


def dense(sparse: Sparse) -> Tensor:
    """Return the entries as a plain tensor (T, ...), zeros included."""
    return torch.cat(list(blocks_of(sparse)), 1).view(sparse.shape)


def blocks_of(sparse: Sparse) -> Iterable[Tensor]:
    """Cut deltas (T, ...) into blocks (T, C), in reading order."""
    return each_trimmed(sparse.deltas, sparse.cut) if isinstance(sparse, Trimmed) else blocks(sparse)


def loop_arguments(sparse: Sparse) -> tuple[Tensor, Tensor] | None:
    """Return values (T, C) and the level (T) that kept magnitudes exceed, for the compiled loops.

    None if the loops cannot be used: on a GPU, and for other dtypes.
    """
    values, cut = (sparse.deltas, sparse.cut) if isinstance(sparse, Trimmed) else (sparse, (0.0,) * len(sparse))
    return (values.reshape(len(values), -1).contiguous(), values.new_tensor(cut)) if is_looped(values) else None


def vector_cut(layers: LayerSource, density: PerTask, change: Change | None = None) -> Cut:
    """Find the cut of each task's whole vector; `change` maps blocks to the values that are compared."""
    shares = each_of(density, layers.tasks)
    return cut_of(partial(over_stacks, layers), lambda n: [count_of(share, n) for share in shares], change)
