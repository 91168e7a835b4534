"""The steps of TIES-Merging (arXiv:2306.01708): trim, elect a sign per entry, average what agrees with it.

Each task's whole vector is trimmed, one layer at a time, so that a parameter may lose all its entries.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, is_looped, is_summed_in_order, join_pieces
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import Cut, cut_of, each_trimmed
from merganser.linalg.thresholds import Change
from merganser.operators.coefficients import ROUNDING, PerTask, each_of
from merganser.operators.sums import total

R = TypeVar("R")


def over_stacks(layers: LayerSource, function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function, which must not keep them, to the deltas (T, ...) of every layer."""
    return layers.map(lambda layer: function(layer.deltas))


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


def elect_sign(deltas: Sparse, draw: int = 0) -> Tensor:
    """Return the sign of the sum over tasks (T, ...): the direction with the larger total magnitude; `draw` on a draw.

    >>> elect_sign(torch.tensor([[3.0, 1.0, 2.0], [-1.0, -4.0, -2.0]]))
    tensor([ 1., -1.,  0.])
    """
    if arguments := loop_arguments(deltas):
        from merganser.linalg import loops

        signs = torch.empty(deltas.shape[1:], dtype=deltas.dtype)
        loops.elect(*(each.numpy() for each in arguments), draw, signs.view(-1).numpy())
        return signs
    return join_pieces(
        (_sign(block, draw) for block in blocks_of(deltas)), deltas.shape[1:], deltas.dtype, deltas.device
    )


def _sign(block: Tensor, draw: int) -> Tensor:
    sign = total(block).sign_()
    return sign.masked_fill_(sign == 0, draw) if draw else sign


def winning_sign(layers: LayerSource, sparse: Callable[[LayerDeltas], Sparse]) -> int:
    """Elect signs in all layers, on the deltas as `sparse` returns them; return the sign that wins more entries.

    1 on a draw.
    """
    return -1 if sum(layers.map(lambda layer: balance_of(elect_sign(sparse(layer))))) < 0 else 1


def cut_and_winner(layers: LayerSource, density: PerTask) -> tuple[Cut, int]:
    """Find the cut of each task's whole vector, and the sign that wins more entries."""
    cut = vector_cut(layers, density)
    return cut, winning_sign(layers, lambda layer: trim(layer.deltas, cut))


def balance_of(sign: Tensor) -> int:
    """Return how many more entries are positive than negative.

    >>> balance_of(torch.tensor([1.0, -1.0, 0.0, -1.0]))
    -1
    """
    return int(sign.sum(dtype=torch.int64))


Agreement = Literal["disjoint", "sum"]  # the mean of those that agree, or their sum


def disjoint_mean(deltas: Sparse, sign: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Average each entry (T, ...) over the tasks that agree with its sign (...), in float64; return the deltas' dtype.

    Zeros agree with no sign; where no task agrees the mean is 0. `dtype`: the result's, by default the deltas'.

    >>> disjoint_mean(torch.tensor([[3.0, 1.0], [5.0, -4.0], [-1.0, -2.0]]), torch.tensor([1.0, -1.0]))
    tensor([ 4., -3.])
    """
    dtype = dtype or deltas.dtype
    arguments = loop_arguments(deltas)
    if arguments and dtype == deltas.dtype:
        from merganser.linalg import loops

        means = torch.empty(deltas.shape[1:], dtype=dtype)
        loops.agreeing_mean(*(each.numpy() for each in arguments), sign.view(-1).numpy(), means.view(-1).numpy())
        return means
    return join_pieces(_means(deltas, sign.flatten()), deltas.shape[1:], dtype, deltas.device)


def disjoint_sum(deltas: Sparse, sign: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Add up each entry (T, ...) over the tasks that agree with its sign (...), in float64; as `disjoint_mean` else.

    >>> disjoint_sum(torch.tensor([[3.0, 1.0], [5.0, -4.0], [-1.0, -2.0]]), torch.tensor([1.0, -1.0]))
    tensor([ 8., -6.])
    """
    pieces = _means(deltas, sign.flatten(), divided=False)
    return join_pieces(pieces, deltas.shape[1:], dtype or deltas.dtype, deltas.device)


AGREEMENTS = {"disjoint": disjoint_mean, "sum": disjoint_sum}


def _means(deltas: Sparse, sign: Tensor, divided: bool = True) -> Iterator[Tensor]:
    start = 0
    for block in blocks_of(deltas):
        side = sign[start : start + block.shape[1]]
        agreeing = (block * side).clamp_(min=0)
        # Counted as floats: torch's comparisons take several times as long when their result is boolean.
        summed = agreeing.sum(0, dtype=torch.float64).mul_(side)
        yield summed.div_(agreeing.gt_(0).sum(0, dtype=torch.float32).clamp_(min=1)) if divided else summed
        start += block.shape[1]


def weighted_disjoint_mean(
    deltas: Tensor, sign: Tensor | None, weights: Sequence[float], divided: bool = True
) -> Tensor:
    """Average each entry (T, ...) over the tasks that agree with its sign (...), by the tasks' weights.

    What must agree is the delta times its weight; without a sign all do. Not `divided`, and where the weights add up to
    0: their weighted sum. It is taken in float64; returns the deltas' dtype.

    >>> deltas, sign = torch.tensor([[3.0, 1.0], [5.0, -4.0]]), torch.tensor([1.0, -1.0])
    >>> weighted_disjoint_mean(deltas, sign, [3.0, 1.0])
    tensor([ 3.5000, -4.0000])
    >>> weighted_disjoint_mean(deltas, None, [3.0, 1.0], divided=False)
    tensor([14., -1.])
    """
    own = torch.tensor(weights, dtype=torch.float64, device=deltas.device).unsqueeze(1)
    if sign is None and not divided and is_summed_in_order(deltas, own):
        from merganser.linalg import loops

        result, flat = torch.empty(deltas.shape[1:], dtype=deltas.dtype), deltas.view(len(deltas), 1, -1)
        given = (flat, own, deltas.new_empty(0, flat.shape[2]), own.new_zeros(1), result.view(1, -1))
        loops.weighted_sum(*(each.numpy() for each in given))
        return result
    pieces = _weighted_means(deltas, None if sign is None else sign.flatten(), own, divided)
    return join_pieces(pieces, deltas.shape[1:], deltas.dtype, deltas.device)


def _weighted_means(deltas: Tensor, sign: Tensor | None, weights: Tensor, divided: bool) -> Iterator[Tensor]:
    start, signed = 0, bool((weights < 0).any())  # such weights cancel but for rounding: 0.1, 0.2 and -0.3
    for block in blocks(deltas):
        weighted, agrees = block * weights, None
        if sign is not None:
            along = weighted * sign[start : start + block.shape[1]]
            agrees = torch.gt(along, 0, out=along)
            weighted *= agrees
        summed = weighted.sum(0)
        if divided:
            own = weights * (torch.ones_like(weighted) if agrees is None else agrees)
            total = own.sum(0)
            size = own.abs().sum(0) if signed else total
            summed /= torch.where(total.abs() <= ROUNDING * size, 1.0, total)
        yield summed
        start += block.shape[1]


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
