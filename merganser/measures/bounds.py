"""Inequalities that papers prove about merging, with both sides on real deltas; docs/measures.md names the equations.

Each bound is taken where it is tightest: at the largest ratio of its left side to its right side. Shape legend: T
tasks, M rows, N columns, R = min(M, N), K singular triples kept of one task, n entries of a vector.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from math import floor, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg import lapack
from merganser.linalg.decompositions import Factors
from merganser.linalg.joint import polar
from merganser.linalg.svd import numerical_rank, spectral_norm
from merganser.operators.masks import agrees, elected, ratio
from merganser.operators.subspaces import triples_holding

ROUNDING = 1e-6  # of `scale`: what float32 factors leave of a side that is 0
COVERED = 4  # tasks up to which TSV's theorem says nothing
ETA = 0.4  # of the nuclear norm: what STAR keeps by default


class Bound(NamedTuple):
    """Left side <= right side, as a paper claims; `at`: the place, in words; `scale`: the magnitude of the values."""

    left: float
    right: float
    at: str
    scale: float = 0.0
    claimed: bool = True  # whether the paper's conditions are met

    @property
    def ratio(self) -> float:
        """Return left / right; 0 if both are rounding errors, infinity if only the right side is 0."""
        if self.left <= ROUNDING * self.scale:
            return 0.0
        return self.left / self.right if self.right else float("inf")

    @property
    def holds(self) -> bool:
        """Tell whether the left side is no larger, up to rounding."""
        return self.left <= self.right + ROUNDING * self.scale

    def as_json(self) -> dict[str, float | str | bool | None]:
        """Return both sides, the ratio and whether the bound holds; an infinite ratio is None."""
        ratio = None if self.ratio == float("inf") else self.ratio
        about = {"left": self.left, "right": self.right, "ratio": ratio, "holds": self.holds}
        return {**about, "claimed": self.claimed, "at": self.at}


def nearest(bounds: Iterable[Bound]) -> Bound | None:
    """Return the bound with the largest ratio; None of none."""
    return max(bounds, key=lambda bound: bound.ratio, default=None)


def drm(tasks: Sequence[str], deltas: Tensor, factors: Sequence[Factors]) -> dict[str, Bound | None]:
    """Bound how far the singular values of all tasks' matrices (T, M, N) side by side are from each task's own.

    |sigma_i([D_1 .. D_T]) - sqrt(T) sigma_i(D_t)| <= sum_j (2 ||D_t|| ||D_j - D_t|| + ||D_j - D_t||^2) /
    (sqrt(T) sigma_i(D_t)), in spectral norms, for every t and every i up to the rank of D_t (DRM, proposition 2).
    `drm_v`: the same of the transposes, whose norms are the same.
    """
    count = len(tasks)
    apart = torch.zeros(count, count, dtype=torch.float64)
    for i, j in combinations(range(count), 2):
        apart[i, j] = apart[j, i] = spectral_norm(deltas[i] - deltas[j])
    bounds: dict[str, Bound | None] = {}
    for name, side in (("drm_h", deltas), ("drm_v", deltas.mT)):
        joint = spectrum_beside(side)
        bounds[name] = nearest(
            bound
            for task, own, distances in zip(tasks, factors, apart, strict=True)
            for bound in _perturbed(task, joint, own, distances, deltas.shape[1:])
        )
    return bounds


def spectrum_beside(deltas: Tensor) -> Tensor:
    """Return the singular values, descending, of T matrices (T, M, N) side by side, in float64.

    >>> spectrum_beside(torch.tensor([[[3.0, 0.0]], [[0.0, 4.0]]]))
    tensor([5.], dtype=torch.float64)
    """
    joined = deltas.transpose(0, 1).flatten(1)
    tall = joined.mT if joined.shape[0] < joined.shape[1] else joined
    return lapack.eigenvalues_(lapack.gram(tall)).flip(0).clamp(min=0).sqrt()


def _perturbed(task: str, joint: Tensor, own: Factors, distances: Tensor, shape: Sequence[int]) -> list[Bound]:
    """Return the bound of one task at its tightest singular value; none for a zero matrix."""
    rank = numerical_rank(own.s, (shape[0], shape[1]))
    if not rank:
        return []
    alone = sqrt(len(distances)) * own.s[:rank].double()
    left = (joint[:rank] - alone).abs()
    right = (2 * own.s[0].double() * distances + distances.square()).sum() / alone
    ratios = torch.where(right > 0, left / right, left)
    place = int(ratios.argmax())
    return [Bound(float(left[place]), float(right[place]), f"{task}, σ{place + 1}", float(alone[0]))]


def tsv(shape: Sequence[int], factors: Sequence[Factors]) -> Bound | None:
    """Bound the change by orthogonalising the tasks' leading vectors, by that of all their vectors.

    ||[U_1 .. U_T] cut to K columns each - its polar factor|| <= ||[U_1 .. U_T] - its polar factor|| = sqrt(R)
    (sqrt(T) - 1) in Frobenius norms, for T > 4 and K <= R (T - 2 sqrt(T)) / T (TSV, theorem 6.1 and appendix C.3). The
    theorem is about square U_t, so the side of the matrix with R rows is taken. K is what TSV-M keeps, R // T, or less
    if the theorem asks for less. None if R < T.
    """
    count, size = len(factors), min(shape)
    most = floor(size * (count - 2 * sqrt(count)) / count)
    kept = min(size // count, most) if most > 0 else size // count
    if not kept:
        return None
    whole = sqrt(size) * (sqrt(count) - 1)
    sides = {"U": [f.u for f in factors]} if shape[0] <= shape[1] else {}
    sides |= {"V": [f.vh.mT for f in factors]} if shape[1] <= shape[0] else {}
    claimed = count > COVERED and most > 0
    return nearest(
        Bound(procrustes_error([each[:, :kept] for each in vectors]), whole, f"{side}, k = {kept}", sqrt(size), claimed)
        for side, vectors in sides.items()
    )


def procrustes_error(vectors: Sequence[Tensor]) -> float:
    """Return how far the tasks' vectors in columns (M, K each) lie from orthonormal ones: the Frobenius norm.

    >>> e1 = torch.eye(2)[:, :1]
    >>> round(procrustes_error([e1, e1]), 4), procrustes_error([e1, torch.eye(2)[:, 1:]])  # sqrt(2) - 1
    (0.4142, 0.0)
    """
    stack = torch.cat(list(vectors), dim=1)
    exact = stack.double()
    return float(torch.linalg.matrix_norm(exact - polar(exact, stack.dtype)))


def star(tasks: Sequence[str], factors: Sequence[Factors]) -> dict[str, Bound | None]:
    """Bound the effect of a task's delta B on inputs x of another task A: ||B x|| <= r_B beta sqrt(r_A).

    x = sum_j alpha_j v_j of A's right singular vectors, beta the largest sigma_i(B) |alpha_j| (the survey's
    appendix on STAR). Here x is the part in A's row space of the direction that B stretches most. It is taken for
    the deltas as far as they are decomposed, and (`star_truncated`) for STAR's: truncated, and rescaled to their
    nuclear norm.
    """
    whole = [Factors(f.u, f.s[: len(f.vh)], f.vh) for f in factors]
    cut = [_truncated(f) for f in whole]
    return {"star": _conflict(tasks, whole), "star_truncated": _conflict(tasks, cut)}


def _truncated(factors: Factors) -> Factors:
    u, s, vh = factors
    kept = triples_holding(s, ETA) if len(s) else 0
    return Factors(u[:, :kept], s[:kept] * (s.sum() / s[:kept].sum()), vh[:kept])


def _conflict(tasks: Sequence[str], factors: Sequence[Factors]) -> Bound | None:
    bounds = []
    for (name, a), (other, b) in permutations(zip(tasks, factors, strict=True), 2):
        if len(a.s) and len(b.s):
            alpha = a.vh.double() @ b.vh[0].double()
            left = (b.s.double() * (b.vh.double() @ (a.vh.double().mT @ alpha))).norm()
            beta = b.s[0].double() * alpha.abs().max()
            right = len(b.s) * beta * sqrt(len(a.s))
            bounds.append(Bound(float(left), float(right), f"{other} on {name}", float(b.s[0])))
    return nearest(bounds)


class Distances(NamedTuple):
    """Sums of T tasks' vectors, from which EMR's distances follow; they add up over layers. Each (T,), float64."""

    own: Tensor  # squares of the task's entries
    elected: Tensor  # squares of its difference from the elected vector
    product: Tensor  # of the task's vector with the masked one
    masked: Tensor  # squares of the masked vector
    magnitude: Tensor  # of the task's entries
    masked_magnitude: Tensor  # of the masked vector

    def plus(self, other: "Distances") -> "Distances":
        """Add the sums of two layers."""
        return Distances(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def factors(self) -> dict[str, Tensor]:
        """Return the tasks' rescalers (T,): the paper's, and the least-squares one."""
        pairs = {"magnitude": (self.magnitude, self.masked_magnitude), "least_squares": (self.product, self.masked)}
        return {name: ratio(torch.stack(pair)) for name, pair in pairs.items()}

    def rescaled(self, factor: Tensor | float) -> Tensor:
        """Return the squared distances (T,) from the masked vector times a factor, at least 0."""
        return (self.own - 2 * factor * self.product + factor**2 * self.masked).clamp(min=0)


def emr_distances(deltas: Tensor) -> Distances:
    """Sum the terms of EMR's chain of distances for one layer of all tasks (T, ...).

    >>> found = emr_distances(torch.tensor([[2.0, -1.0, 0.0], [1.0, 3.0, 0.0]]))  # elected: [2, 3, 0]
    >>> found.elected.tolist(), found.rescaled(1.0).tolist()  # the first task's mask leaves the 3 out
    ([16.0, 1.0], [1.0, 1.0])
    """
    flat = deltas.reshape(len(deltas), -1)
    unified, own = elected(flat), flat.double()
    masked = agrees(own, unified) * unified.double()
    sums = own.square(), (own - unified).square(), own * masked, masked.square(), own.abs(), masked.abs()
    return Distances(*(each.sum(1) for each in sums))


def emr(tasks: Sequence[str], layer: Distances, whole: Distances) -> dict[str, Bound | None]:
    """Bound each step of EMR's chain of squared distances by the one before: of a layer, or of the whole vector.

    The mask lowers each task's distance from the elected vector; the rescaler lowers it again, which the survey proves
    by taking the paper's rescaler for the least-squares one. Rescalers are of the whole vector, which alone the second
    step is claimed of.
    """
    masked, everywhere = layer.rescaled(1.0), layer is whole
    steps = {"emr_masks": (masked, layer.elected, True)}
    for name, factor in whole.factors.items():
        steps[f"emr_{name}"] = layer.rescaled(factor), masked, everywhere
    return {
        name: nearest(
            Bound(float(left), float(right), task, float(scale), claimed)
            for task, left, right, scale in zip(tasks, after, before, layer.own, strict=True)
        )
        for name, (after, before, claimed) in steps.items()
    }
