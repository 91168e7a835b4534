"""Means of the tasks' models entry by entry, weighted by how sure each model is of an entry: its Fisher information.

Legend: T tasks.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource

FLOOR = 1e-6  # of the information, once its norm over the whole vector is 1
PIECE = 1 << 14  # entries summed at once: torch sums more in several threads, in an order that depends on their number


def fisher_of(layer: LayerDeltas) -> Tensor:
    """Return the Fisher information (T, ...) that was measured of a layer."""
    return layer.statistics["fisher"]


def base_fisher_of(layer: LayerDeltas) -> Tensor:
    """Return the base's Fisher information on each task's data (T, ...) that was measured of a layer."""
    return layer.statistics["base_fisher"]


def fisher_norms(layers: LayerSource) -> list[float]:
    """Return the L2 norm of each task's Fisher information over the whole vector; 1 where all of it is 0."""
    squares = [sum(column) for column in zip(*layers.map(_squares), strict=True)]
    return [float(square) ** 0.5 or 1.0 for square in squares]


def _squares(layer: LayerDeltas) -> list[float]:
    pieces = [each.reshape(-1).split(PIECE) for each in fisher_of(layer)]
    return [float(sum(piece.double().square().sum() for piece in of_task)) for of_task in pieces]


def normalised(information: Tensor, norms: Sequence[float]) -> Iterable[Tensor]:
    """Give each task's information (T, ...) over its norm, at least 1e-6, in float64.

    >>> [each.tolist() for each in normalised(torch.tensor([[3.0, 0.0]]), [5.0])]
    [[0.6, 1e-06]]
    """
    return ((each.double() / norm).clamp_(min=FLOOR) for each, norm in zip(information, norms, strict=True))


def mean_by(deltas: Tensor, importance: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """Average the tasks' deltas (T, ...), each entry by the tasks' weights times its importance (T of ...).

    >>> mean_by(torch.tensor([[4.0], [0.0]]), torch.tensor([[3.0], [1.0]]).double(), [1.0, 1.0])
    tensor([3.])
    """
    moved = torch.zeros(deltas.shape[1:], dtype=torch.float64, device=deltas.device)
    total = torch.zeros_like(moved)
    for delta, each, weight in zip(deltas, importance, weights, strict=True):
        share = each * weight
        moved.addcmul_(delta.double(), share)
        total.add_(share)
    return moved.div_(total).to(deltas.dtype)


def matched_sum(deltas: Tensor, information: Tensor, base: Tensor, alphas: Sequence[float]) -> Tensor:
    """Add the tasks' deltas times alpha (T, ...), corrected so that the merged model's gradient matches the tasks'.

    `information`, and the base's on each task's data: (T, ...). Entries without any are not corrected.

    >>> matched_sum(torch.tensor([[4.0], [0.0]]), torch.tensor([[3.0], [1.0]]), torch.zeros(2, 1), [0.5, 0.5])
    tensor([3.])
    """
    start = base.mean(dim=0, dtype=torch.float64)
    total, moved, plain = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for delta, each, alpha in zip(deltas, information, alphas, strict=True):
        total.add_(each.double(), alpha=alpha)
        plain.add_(delta.double(), alpha=alpha)
        moved.addcmul_(delta.double(), start + each.double(), value=alpha)
    return torch.where(total > 0, moved / total, plain).to(deltas.dtype)
