"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks, C entries of a block."""

from collections.abc import Iterator

import torch
from torch import Tensor

from merganser.linalg.blocks import joined
from merganser.operators.trim import Sparse, blocks_of, loop_arguments


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
    return joined(_means(deltas, sign.flatten()), deltas.shape[1:], dtype, deltas.device)


def _means(deltas: Sparse, sign: Tensor) -> Iterator[Tensor]:
    start = 0
    for block in blocks_of(deltas):
        side = sign[start : start + block.shape[1]]
        agreeing = (block * side).clamp_(min=0)
        # Counted as floats: torch's comparisons take several times as long when their result is boolean.
        mean = agreeing.sum(0, dtype=torch.float64).mul_(side)
        yield mean.div_(agreeing.gt_(0).sum(0, dtype=torch.float32).clamp_(min=1))
        start += block.shape[1]
