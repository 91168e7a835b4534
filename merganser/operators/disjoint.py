"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks, C entries of a block."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks, join_pieces
from merganser.operators.trim import Sparse, blocks_of, loop_arguments

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

    What must agree is the delta times its weight; without a sign all do. Not `divided`: their weighted sum. It is taken
    in float64; returns the deltas' dtype.

    >>> deltas, sign = torch.tensor([[3.0, 1.0], [5.0, -4.0]]), torch.tensor([1.0, -1.0])
    >>> weighted_disjoint_mean(deltas, sign, [3.0, 1.0])
    tensor([ 3.5000, -4.0000])
    >>> weighted_disjoint_mean(deltas, None, [3.0, 1.0], divided=False)
    tensor([14., -1.])
    """
    own = torch.tensor(weights, dtype=torch.float64, device=deltas.device).unsqueeze(1)
    pieces = _weighted_means(deltas, None if sign is None else sign.flatten(), own, divided)
    return join_pieces(pieces, deltas.shape[1:], deltas.dtype, deltas.device)


def _weighted_means(deltas: Tensor, sign: Tensor | None, weights: Tensor, divided: bool) -> Iterator[Tensor]:
    start = 0
    for block in blocks(deltas):
        weighted = block * weights
        agrees = torch.ones_like(weighted)
        if sign is not None:
            agrees = (weighted * sign[start : start + block.shape[1]] > 0).double()
        summed = (weighted * agrees).sum(0)
        total = (weights * agrees).sum(0)
        yield summed / torch.where(total == 0, 1.0, total) if divided else summed
        start += block.shape[1]
