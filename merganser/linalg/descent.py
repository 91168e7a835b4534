"""Minimise a function of one matrix by gradient steps: no data and no random numbers, so the same steps each time.

Everything is in float64, so that the order in which gradients are added up moves a minimum by rounding errors alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Gradient = Callable[[Tensor], Tensor]  # of the function at a point, in float64
BETAS = (0.9, 0.999)
EPSILON = 1e-8


def adam(start: Tensor, gradient: Gradient, steps: int, lr: float) -> Tensor:
    """Take steps of Adam (Kingma and Ba, ICLR 2015) from a point; return the last point, in float64.

    >>> adam(torch.tensor([1.0]), lambda point: 2 * point, steps=3, lr=0.1)
    tensor([0.7016], dtype=torch.float64)
    """
    first, second = BETAS
    point = start.to(torch.float64, copy=True)
    mean, square = torch.zeros_like(point), torch.zeros_like(point)
    for step in range(1, steps + 1):
        slope = gradient(point)
        mean.lerp_(slope, 1 - first)
        square.mul_(second).addcmul_(slope, slope, value=1 - second)
        size = square.div(1 - second**step).sqrt_().add_(EPSILON)
        point.addcdiv_(mean, size, value=-lr / (1 - first**step))
    return point


def momentum(start: Tensor, gradient: Gradient, steps: int, lr: float, kept: float) -> Tensor:
    """Take gradient steps, each plus the share `kept` of the last one; return the last point, in float64.

    >>> momentum(torch.tensor([1.0]), lambda point: 2 * point, steps=2, lr=0.1, kept=0.5)
    tensor([0.5400], dtype=torch.float64)
    """
    point = start.to(torch.float64, copy=True)
    moved = torch.zeros_like(point)
    for _ in range(steps):
        moved.mul_(kept).add_(gradient(point))
        point.sub_(moved, alpha=lr)
    return point
