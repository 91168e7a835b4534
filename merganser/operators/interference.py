"""Interference of a merged delta with the tasks' own inputs, for which their deltas' rows stand (arXiv:2503.08099).

A task's interference is the squared distance of what the merged delta and its own do to the rows of a guide, its delta
or a part of it: ||(M - D_t) D_t^T||^2 / w_t, summed over the tasks. Its gradient is 2 (M A - B).

Shape legend: T tasks, M rows, N columns, K numerical rank of the tasks' matrices stacked.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg.joint import joint
from merganser.operators.angles import squared_lengths

ROUNDING = 4 * torch.finfo(torch.float64).eps  # of a product's largest entry, for each number that it is a sum of


class Interference(NamedTuple):
    """The quadratic function of a merged delta (M, N) that the tasks' interference is, but for a constant."""

    curvature: Tensor  # A (N, N): the sum of D_t^T D_t / w_t, in float64
    target: Tensor  # B (M, N): the sum of D_t D_t^T D_t / w_t, in float64

    def gradient(self, merged: Tensor) -> Tensor:
        """Return the gradient at a merged delta (M, N), in float64; 0 where it is no more than rounding errors.

        Adam divides a gradient by its size: from a minimum, rounding errors alone would lead it away.
        """
        slope = torch.addmm(self.target, merged, self.curvature, beta=-2.0, alpha=2.0)
        rounding = ROUNDING * len(self.curvature) * self.target.abs().amax(1, keepdim=True)
        return slope.masked_fill_(slope.abs() <= rounding, 0)


def interference(guides: Iterable[Tensor], weights: Sequence[float]) -> Interference:
    """Return the interference with guides (M, N), each divided by its weight w_t; a weight of 0 leaves its guide out.

    >>> found = interference([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])], [4.0, 9.0])
    >>> found.gradient(torch.tensor([[2.0, 3.0]]).double()).abs().tolist()
    [[0.0, 0.0]]
    """
    curvature, target = torch.zeros(()), torch.zeros(())
    for number, (guide, weight) in enumerate(zip(guides, weights, strict=True)):
        exact = guide.double()
        if number == 0:
            curvature, target = exact.new_zeros(exact.shape[1], exact.shape[1]), torch.zeros_like(exact)
        if weight == 0:
            continue
        curvature.addmm_(exact.mT, exact, alpha=1 / weight)
        target.addmm_(exact @ exact.mT, exact, alpha=1 / weight)
    return Interference(curvature, target)


class Minimum(NamedTuple):
    """The matrix that interferes least with T deltas, the smallest of these, and how fast descent comes to it."""

    axes: Tensor  # (N, K), orthonormal columns: the eigenvectors of the curvature
    curvatures: Tensor  # (K,), descending: its eigenvalues
    coordinates: Tensor  # (M, K): of the matrix, on the axes


def minimum(deltas: Tensor) -> Minimum:
    """Return what interferes least with the deltas (T, M, N), each divided by its squared length, in float64.

    It is B A^+, found by decomposing the normalised deltas stacked, P S V^T, and not A, their square.

    >>> least = minimum(torch.tensor([[[2.0, 0.0]], [[4.0, 0.0]]]))
    >>> (least.coordinates @ least.axes.mT).round(decimals=4).tolist()
    [[3.0, 0.0]]
    """
    norms = squared_lengths(deltas).sqrt()
    units = deltas / torch.where(norms > 0, norms, 1.0).to(deltas.dtype).view(-1, 1, 1)
    space = joint(units.mT)
    target = torch.zeros(deltas.shape[1], len(space.s), dtype=torch.float64, device=deltas.device)
    for task, norm in enumerate(norms):
        own = space.coordinates(task)  # S P_t^T (K, M)
        target += norm * own.mT @ (own @ own.mT / space.s**2)
    return Minimum(space.u, space.s**2, target)
