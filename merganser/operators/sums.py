"""Sums over tasks, accumulated in float64, and the shares in which a task borrows from others (DTS, equation 8).

A float64 sum of float32 deltas is practically exact, so the order of the tasks does not decide whether opposite deltas
cancel, which sign wins, or on which side of a threshold an entry falls.

Legend: T tasks.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.linalg.blocks import blocks, by_blocks


def total(deltas: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """Add the tasks' deltas (T, ...), each times its weight (1 by default), in float64.

    >>> total(torch.tensor([[1.0, 2.0], [10.0, 20.0]]), [1.0, -0.5])
    tensor([-4., -8.], dtype=torch.float64)
    """
    return by_blocks(lambda block: _sum(block, weights), deltas, torch.float64)


def scaled_sum(deltas: Tensor, scaling: float, weights: Sequence[float] | None = None) -> Tensor:
    """Add the tasks' deltas (T, ...) and scale the sum; return the deltas' dtype.

    >>> scaled_sum(torch.tensor([[1.0, 2.0], [10.0, 20.0]]), 0.5)
    tensor([ 5.5000, 11.0000])
    """
    return by_blocks(lambda block: _sum(block, weights).mul_(scaling), deltas, deltas.dtype)


def times(deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Multiply each task's deltas (T, ...) by its weight.

    >>> times(torch.tensor([[1.0], [3.0]]), [2.0, -1.0]).flatten()
    tensor([ 2., -3.])
    """
    factors = torch.tensor(weights, dtype=deltas.dtype, device=deltas.device)
    return deltas * factors.view(-1, *[1] * (deltas.ndim - 1))


def inner_products_with_gradient(deltas: Tensor, gradient: Tensor) -> Tensor:
    """Return the inner product of each task's delta (T, ...) and a gradient of one delta's size, in float64 (T).

    >>> inner_products_with_gradient(torch.tensor([[1.0, 2.0], [10.0, 20.0]]), torch.tensor([3.0, -1.0]))
    tensor([ 1., 10.], dtype=torch.float64)
    """
    pieces = zip(blocks(deltas), gradient.reshape(-1).split(blocks(deltas)[0].shape[1]), strict=True)
    products = [block.double() @ piece.double() for block, piece in pieces]
    return torch.stack(products).sum(0)


def _sum(block: Tensor, weights: Sequence[float] | None) -> Tensor:
    if weights is not None:
        if len(weights) != len(block):
            raise ValueError(f"{len(weights)} weights for {len(block)} tasks")
        block = block.double() * torch.tensor(weights, dtype=torch.float64, device=block.device).unsqueeze(1)
    return block.sum(0, dtype=torch.float64)


def similarities(task: str, embeddings: Mapping[str, Tensor]) -> dict[str, float]:
    """Return each other task's share in the cosine similarities to this one's embedding (equation 8).

    A task that is alone is its own. Raises InputError when the similarities do not add up to something positive.
    """
    others = [other for other in embeddings if other != task]
    if not others:
        return {task: 1.0}
    stacked = torch.nn.functional.normalize(torch.stack([embeddings[name].double() for name in [task, *others]]), dim=1)
    cosines = [float(cosine) for cosine in (stacked[1:] @ stacked[0]).cpu()]
    if sum(cosines) <= 0:
        reason = "are unlike those of all other tasks: their cosine similarities do not add up to a positive number"
        raise InputError(f"{task}: its class names {reason}; give it other class names, or leave the task out")
    return {other: cosine / sum(cosines) for other, cosine in zip(others, cosines, strict=True)}
