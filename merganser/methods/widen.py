"""WIDEN: weigh each model's columns by how far their lengths and their directions are from the base's.

Shape legend: T tasks, M rows, N columns, C entries of a block.
"""

from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import by_blocks
from merganser.merging.method import NonNegative, Scaling, method
from merganser.operators.angles import base_vectors, grouped, tiles

ROUNDING = 1e-12  # of a square: below it a column lies along the base's


@method(
    on_models=True,
    family="arithmetic",
    formula=r"\lambda \sum_t \tfrac{1}{2} \bigl(s(m_t) + s(d_t)\bigr) \odot \Delta_t, "
    r"\quad s(x_t) = \begin{cases} b & x_t > l \, \bar{x}_t \\ e^{x_t} / \sum_j e^{x_j} & \text{else} \end{cases}, "
    r"\quad m, d \text{: the ranks of a column's change of length and of direction among its model's}",
    paper="Yu et al., 2024, arXiv:2408.03092",
    law="one task is its own model; of equal tasks, columns that changed little are averaged, the others added up",
    ours=("scaling",),
)
def widen(layer: LayerDeltas, *, limit: NonNegative = 1.0, boost: NonNegative = 1.0, scaling: Scaling = 1.0) -> Tensor:
    """Add the tasks' deltas, each column weighed by its rank among its model's columns.

    Columns are ranked twice, by how much their lengths differ from the base's, and their directions. A rank of more
    than `limit` times the model's mean counts `boost`, the others share 1 by softmax among the models. Parameters that
    are not matrices are weighed entry by entry, by the size of the change. Equal columns have one rank, their mean;
    the authors' code ranks them by their place.
    """
    if layer.kind == "vector":
        means = mean_sizes(layer.deltas).unsqueeze(1)
        weigh = partial(_by_size, means=means, limit=limit, boost=boost, scaling=scaling)
        return by_blocks(weigh, layer.deltas, layer.dtype)
    length, direction = changes(layer.deltas, base_vectors(layer, "column"))
    mean = (length.shape[1] - 1) / (2 * length.shape[1])  # of ranks, exactly: no rounding lifts equal ones above it
    by_length, by_direction = (
        scores(ranked(each), torch.tensor(mean, dtype=each.dtype), limit, boost) for each in (length, direction)
    )
    weights = (by_length + by_direction) * (scaling / 2)
    merged = torch.zeros(layer.shape, dtype=torch.float64, device=layer.deltas.device)
    for delta, weight in zip(layer.deltas, weights, strict=True):
        merged.addcmul_(delta.double(), weight)
    return merged.to(layer.dtype)


def changes(deltas: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much each column's length differs from the base's (N, M), and 1 minus the cosine: (T, N) each.

    Without cancellation: from the deltas (T, M, N), so that a column that did not change has exactly 0.

    >>> length, direction = changes(torch.tensor([[[0.0, 3.0], [4.0, 0.0]]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> length.tolist(), direction.round(decimals=4).tolist()
    ([[2.0, 1.0]], [[0.4, 0.2]])
    """
    vectors = grouped(deltas, "column")
    own = torch.zeros(base.shape[0], dtype=torch.float64, device=base.device)
    inner, square = (own.new_zeros(vectors.shape[:2]) for _ in range(2))
    for rows, columns in tiles(vectors):
        start, delta = base[rows, columns].double(), vectors[:, rows, columns].double()
        own[rows] += start.square().sum(-1)
        inner[:, rows] += (delta * start).sum(-1)
        square[:, rows] += delta.square().sum(-1)
    before, after = own.sqrt(), (own + 2 * inner + square).clamp(min=0).sqrt()
    both, product = before * after, own + inner
    beside = own * square - inner.square()
    beside = beside.masked_fill(beside <= ROUNDING * own * square, 0)
    near = beside / torch.where(both > 0, both * (both + product.clamp(min=0)), 1.0)
    far = 1 - product / torch.where(both > 0, both, 1.0)
    turned = torch.where(product > 0, near, far)
    unlike = (square > 0).double()  # with a column of zeros on one side
    longer = (2 * inner + square).abs() / torch.where(before + after > 0, before + after, 1.0)
    return longer, torch.where(both > 0, turned, unlike)


def ranked(values: Tensor) -> Tensor:
    """Return the rank of each value in its row (T, N), from 0 on and below 1; equal ones have the mean of theirs.

    >>> ranked(torch.tensor([[5.0, 1.0, 1.0, 0.0]]))
    tensor([[0.7500, 0.3750, 0.3750, 0.0000]], dtype=torch.float64)
    """
    ordered = values.sort(1).values
    below, up_to = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (below + up_to - 1).double() / (2 * values.shape[1])


def scores(values: Tensor, means: Tensor, limit: float, boost: float) -> Tensor:
    """Return each task's share of 1 by softmax (T, ...), and `boost` for what is above `limit` times a mean (T, 1).

    >>> scores(torch.tensor([[0.0, 0.5], [0.0, 0.5]]), torch.tensor([[0.25], [1.0]]), 1.0, 2.0)
    tensor([[0.5000, 2.0000],
            [0.5000, 0.5000]])
    """
    return values.softmax(0).masked_fill(values > limit * means, boost)


def mean_sizes(deltas: Tensor) -> Tensor:
    """Return the mean magnitude of each task's entries (T, ...), in float64 (T).

    >>> mean_sizes(torch.tensor([[1.0, -3.0], [0.0, 1.0]])).tolist()
    [2.0, 0.5]
    """
    vectors = grouped(deltas)
    sums = torch.zeros(len(deltas), dtype=torch.float64, device=deltas.device)
    for rows, columns in tiles(vectors):
        sums += vectors[:, rows, columns].abs().sum((1, 2), dtype=torch.float64)
    return sums / vectors.shape[2]


def _by_size(block: Tensor, means: Tensor, limit: float, boost: float, scaling: float) -> Tensor:
    exact = block.double()
    return (scores(exact.abs(), means, limit, boost) * exact).sum(0).mul_(scaling)
