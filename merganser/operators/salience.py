"""Select the entries in which the tasks differ most, and weigh the tasks by what is left (SCE, arXiv:2408.07990).

Legend: T tasks, C entries of a block.
"""

import torch
from torch import Tensor

from merganser.linalg.blocks import by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.select import cut_of, kept
from merganser.linalg.thresholds import InMemory
from merganser.operators.angles import grouped, tiles


def variances(deltas: Tensor) -> Tensor:
    """Return the variance over tasks of each entry (T, ...), in float64; 0 exactly where all are equal.

    >>> variances(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).tolist()
    [1.0, 0.0]
    """

    def variance(block: Tensor) -> Tensor:
        centred = block.double() - block[:1].double()
        return (centred - centred.mean(0)).square_().mean(0)

    return by_blocks(variance, deltas, torch.float64)


def most_varied(deltas: Tensor, density: float) -> Tensor:
    """Keep the share of the entries (T, ...) with the largest variance over tasks; the others become 0.

    The share is of those that have any variance; at 1 all entries are kept.

    >>> most_varied(torch.tensor([[1.0, 5.0, 4.0], [0.0, -5.0, 4.0]]), 0.5)
    tensor([[ 0.,  5.,  0.],
            [ 0., -5.,  0.]])
    """
    if density == 1:
        return deltas
    spread = variances(deltas).reshape(1, -1)
    cut = cut_of(InMemory(lambda: [spread]), lambda _: count_of(density, int(spread.count_nonzero())))
    return deltas * kept(spread, cut).view(deltas.shape[1:])


def mean_squares(deltas: Tensor) -> Tensor:
    """Return the mean square of each task's entries (T, ...), in float64 (T).

    >>> mean_squares(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([5., 0.], dtype=torch.float64)
    """
    vectors = grouped(deltas)
    summed = torch.zeros(len(deltas), dtype=torch.float64, device=deltas.device)
    for rows, columns in tiles(vectors):
        summed += vectors[:, rows, columns].double().square().sum((1, 2))
    return summed / max(1, deltas[0].numel())
