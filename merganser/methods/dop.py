"""DOP: merge one task after another, nearest to the merge so far and to the new task where both have their weight.

Shape legend: T tasks, M rows, N columns, K directions of a delta.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.descent import Gradient, adam
from merganser.linalg.svd import compact
from merganser.merging.method import Count, Fraction, LearningRate, Scaling, method
from merganser.operators.subspaces import triples_holding


@method(
    family="spectral",
    formula=r"\lambda A_T, \quad A_1 = \Delta_1, \quad A_t \text{ from } \tfrac{1}{2} (A_{t-1} + \Delta_t) "
    r"\text{ by gradient steps on } a\, d(A_t, A_{t-1}) + (1 - a)\, d(A_t, \Delta_t), "
    r"\quad d(A, B) = \lVert \Sigma U^\top (A - B) \rVert_F^2 + \lVert (A - B) V \Sigma \rVert_F^2, "
    r"\quad B \approx U \Sigma V^\top",
    paper="Yang et al., NeurIPS 2025, openreview.net/forum?id=zD5cUX67b9",
    law="equal tasks are that task; without steps each task is averaged with the merge so far",
    cost="gradient steps",
    vectors="alike",
    in_order=True,
    ours=("scaling",),
    copies=13,
)
def dop(
    layer: LayerDeltas,
    *,
    eta: Fraction = 0.99999,
    alpha: Fraction = 0.8,
    beta: Fraction = 0.999,
    steps: Count = 200,
    lr: LearningRate = 1e-4,
    scaling: Scaling = 1.0,
) -> Tensor:
    """Average each task with the merge so far, and reduce by Adam both distances, in each one's own directions.

    A distance weighs a direction by its singular value; `eta` is the share of all singular values that counts. `alpha`
    is the weight of the merge so far. At each step it keeps the share `beta` and takes the rest from the weights with
    which the two gradients, each divided by its distance, nearly cancel: 1 keeps the weight, 0 takes the new one.
    Parameters that are not matrices are averaged with the merge so far. The tasks come in the order of their names;
    another order gives another merge. The authors' code keeps one singular value less.
    """
    merged = layer.deltas[0].double()
    for delta in layer.deltas[1:]:
        average = (merged + delta).div_(2)
        if layer.kind == "vector":
            merged = average
            continue
        before, own = (distance_to(each, eta, layer.dtype) for each in (merged, delta.double()))
        merged = adam(average, balanced(before, own, alpha, beta), steps, lr)
    return (scaling * merged).to(layer.dtype)


class Distance(NamedTuple):
    """The distance from a target (M, N) in its own directions, each by its singular value, in float64."""

    target: Tensor
    left: Tensor  # (M, M): U S^2 U^T
    right: Tensor  # (N, N): V S^2 V^T

    def gradient(self, merged: Tensor) -> tuple[Tensor, float]:
        """Return the gradient (M, N) at a matrix, and the distance."""
        beside = merged - self.target
        slope = (self.left @ beside).addmm_(beside, self.right)
        return slope.mul_(2), float((slope * beside).sum()) / 2


def distance_to(target: Tensor, eta: float, exact_to: torch.dtype) -> Distance:
    """Return the distance from a matrix (M, N) in the leading directions that together hold the share `eta`.

    >>> near = distance_to(torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double(), 0.7, torch.float32)
    >>> near.left.round(decimals=4).tolist(), near.gradient(torch.zeros(2, 2).double())[1]
    ([[9.0, 0.0], [0.0, 0.0]], 162.0)
    """
    u, s, vh = compact(target, exact_to=exact_to)
    count = triples_holding(s, eta) if len(s) else 0
    # Not U S and S V^T: multiplied so, a row or a column of zeros stays one, which Adam would lead away from 0.
    left, right = target @ vh[:count].mT, u[:, :count].mT @ target
    return Distance(target, left @ left.mT, right.mT @ right)


def balanced(before: Distance, own: Distance, alpha: float, beta: float) -> Gradient:
    """Return the gradient of both distances by their weights, which move at each call."""
    weight = alpha

    def gradient(merged: Tensor) -> Tensor:
        nonlocal weight
        (first, near), (second, far) = before.gradient(merged), own.gradient(merged)
        weight = beta * weight + (1 - beta) * shortest(first, second, near, far)
        return first.mul_(weight).add_(second, alpha=1 - weight)

    return gradient


def shortest(first: Tensor, second: Tensor, near: float, far: float) -> float:
    """Return the share of the first of two gradients, each divided by its loss, in their shortest mean.

    >>> shortest(torch.tensor([2.0]), torch.tensor([-6.0]), 1.0, 1.0)
    0.75
    >>> shortest(torch.tensor([2.0]), torch.tensor([6.0]), 1.0, 1.0)
    1.0
    """
    scales = [1 / loss if loss > 0 else 0.0 for loss in (near, far)]
    both, one, other = ((a * b).sum() for a, b in ((first, second), (first, first), (second, second)))
    cross, own, beyond = float(both) * scales[0] * scales[1], float(one) * scales[0] ** 2, float(other) * scales[1] ** 2
    return min(max((beyond - cross) / (own + beyond - 2 * cross), 0.0), 1.0) if own + beyond > 2 * cross else 0.5
