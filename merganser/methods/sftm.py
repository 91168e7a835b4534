"""SFTM: superpose the tasks' singular features so that each keeps its singular value in the merged matrix.

Equation 4 with b = s * alpha: u_i^T (sum_j b_j u_j v_j^T) v_i = s_i for the triples i of all tasks. With unit vectors
the system (U^T U) * (V^T V) is positive semidefinite. The triples of one task are orthogonal, so its diagonal blocks
are the identity; of the others only those below the diagonal are computed.
Shape legend: T tasks, K triples of all tasks, C right-hand sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, linalg

from merganser.checkpoints.kinds import is_norm
from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.blocks import join_pieces
from merganser.linalg.cuts import cut_at, each_trimmed
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import compact_each, compact_low_rank
from merganser.linalg.thresholds import in_memory
from merganser.merging.method import Densities, Scaling, method, spaced
from merganser.operators.coefficients import PerTask, each_of
from merganser.operators.sums import scaled_sum

RIDGE = 1e-6  # on the system's unit diagonal: tasks that share a feature make it singular
RESIDUAL = 1e-9  # of the right-hand side's norm
STEPS = 50  # a step takes a hundredth of the time to build the system; if these do not suffice, float32 does not either
EXACT = 5e-7  # of the merged matrix's norm: the largest rounding error accepted
PROBES = 7  # random right-hand sides; solving for 7 takes no longer than for one

Blocks = list[list[Tensor]]  # row by row, the T * (T - 1) / 2 blocks below the diagonal


def trimmed(deltas: Tensor, densities: Sequence[float]) -> Iterator[Tensor]:
    """Keep the largest entries of each task's delta (T, ...), by its share of this parameter."""
    cut = cut_at(in_memory(deltas), densities)
    for delta, level in zip(deltas, cut, strict=True):
        pieces = (block.squeeze(0) for block in each_trimmed(delta.unsqueeze(0), (level,)))
        yield join_pieces(pieces, delta.shape, delta.dtype, delta.device)


def of_models(layer: LayerDeltas | LayerLowRank) -> tuple[Tensor, LayerDeltas]:
    """Return the base's matrix, and the tasks' own instead of their deltas, in float64: they differ in last digits."""
    assert isinstance(layer, LayerDeltas), "adapters are multiplied out if the base is read too"
    assert layer.base is not None, f"{layer.name} was read without the base's weights"
    base = layer.base.double()
    return base, replace(layer, deltas=base + layer.deltas, base=None)


def merged_vector(layer: LayerDeltas, *, density: PerTask, scaling: float, **_: Any) -> Tensor:
    """Trim the deltas; average those of a normalisation, add up those of any other vector, scaled (Algorithm 2)."""
    factor = 1 / len(layer.tasks) if is_norm(layer.name) else scaling
    return scaled_sum(torch.stack(list(trimmed(layer.deltas, each_of(density, layer.tasks)))), factor)


def features(
    layer: LayerDeltas | LayerLowRank, density: PerTask, dtype: torch.dtype, least: float = 0.0
) -> list[Factors]:
    """Decompose each task's trimmed delta, in float64, and keep that in a dtype."""
    rows, columns = layer.shape
    device = (layer.left[0] if isinstance(layer, LayerLowRank) else layer.deltas).device
    space = torch.empty(len(layer.tasks), min(rows, columns), rows + columns, dtype=dtype, device=device)
    decomposed = []
    for own, (u, s, vh) in zip(space, triples_of(layer, density, least), strict=True):
        left, right = own[: len(s)].split([rows, columns], 1)
        decomposed.append(Factors(left.copy_(u.mT).mT, s, right.copy_(vh)))
        del u, vh  # before the next are computed
    return decomposed


def triples_of(layer: LayerDeltas | LayerLowRank, density: PerTask, least: float) -> Iterator[Factors]:
    """Decompose each task's trimmed delta. Trimming looks at entries: only whole adapters stay factors.

    Singular values up to the share `least` of the largest are left out.
    """
    densities = each_of(density, layer.tasks)
    if isinstance(layer, LayerLowRank) and all(each == 1 for each in densities):
        yield from (compact_low_rank(*sides) for sides in zip(layer.left, layer.right, strict=True))
    else:
        deltas = layer.dense().deltas if isinstance(layer, LayerLowRank) else layer.deltas
        for u, s, vh in compact_each(trimmed(deltas, densities)):
            known = int((s > least * s[:1]).sum())
            yield Factors(u[:, :known], s[:known], vh[:known])
            del u, s, vh  # before the next are computed


def superposed(triples: list[Factors]) -> Tensor | None:
    """Add up the tasks' triples (M, N), each so strong that it keeps its singular value; None if that needs float64."""
    all_strengths = strengths(triples)
    if all_strengths is None:
        return None
    u, vh = triples[0].u, triples[0].vh
    merged = u.new_zeros(len(u), vh.shape[1])
    for each, own in zip(triples, all_strengths, strict=True):
        merged.addmm_(each.u * own.to(u.dtype), each.vh)
    return merged


@method(
    family="spectral",
    formula=r"\lambda \sum_i \beta_i u_i v_i^\top, \quad \big((U^\top U) \odot (V^\top V)\big) \beta = \sigma",
    involvement="VDI",
    paper="Qiu et al., 2025, arXiv:2502.10698",
    law="every kept feature keeps its singular value; the same task twice gives it once",
    cost="svd",
    ours=("density", "scaling"),
    vectors=merged_vector,
    searched={"scaling": spaced(0.5, 1.2, 0.1), "density": spaced(0.1, 0.5, 0.05)},
    on_models=lambda superpose, **_: superpose == "models",
    copies=14,
)
def sftm(
    layer: LayerDeltas | LayerLowRank,
    *,
    superpose: Literal["deltas", "models"] = "deltas",
    density: Densities = 0.2,
    solve: bool = True,
    scaling: Scaling = 0.7,
) -> Tensor:
    """Trim each delta to its largest entries, and solve for the weights of all tasks' singular triples together.

    With `solve: false` each triple keeps its singular value as its weight: the sum of the trimmed deltas. With
    `superpose: models` the tasks' own matrices are trimmed and superposed instead of their deltas (the paper's
    figure 1a), and the base's plays no part; at density 1 and scaling 1 features that all tasks share stay as they
    are.
    """
    if superpose == "models":
        base, own = of_models(layer)
        rounding = torch.finfo(layer.dtype).eps  # of models of low rank: no feature of theirs
        return (_merged(own, density, solve, scaling, rounding) - base).to(layer.dtype)
    return _merged(layer, density, solve, scaling)


def _merged(
    layer: LayerDeltas | LayerLowRank, density: PerTask, solve: bool, scaling: float, least: float = 0.0
) -> Tensor:
    """Superpose the features of more than the share `least` of their task's largest."""
    if not solve:
        whole = layer.dense() if isinstance(layer, LayerLowRank) else layer
        return scaled_sum(torch.stack(list(trimmed(whole.deltas, each_of(density, layer.tasks)))), scaling)
    tries = (superposed(features(layer, density, dtype, least)) for dtype in (layer.dtype, torch.float64))
    return next(merged for merged in tries if merged is not None).mul_(scaling).to(layer.dtype)


def strengths(features: Sequence[Factors]) -> tuple[Tensor, ...] | None:
    """Return each task's strengths b in float64.

    None if the features are float32 and that is not exact enough.

    >>> axis = torch.eye(2, 1, dtype=torch.float64)
    >>> same = Factors(axis, torch.tensor([4.0], dtype=torch.float64), axis.mT)
    >>> [strength.round(decimals=3) for strength in strengths([same, same])]
    [tensor([2.], dtype=torch.float64), tensor([2.], dtype=torch.float64)]
    """
    right = torch.cat([each.s.double() for each in features])
    sizes = [len(each.s) for each in features]
    blocks = overlaps(features)
    solved = (
        _by_steps(blocks, right, sizes) if features[0].u.dtype == torch.float32 else _by_cholesky(blocks, right, sizes)
    )
    return None if solved is None else solved.split(sizes)


def overlaps(features: Sequence[Factors]) -> Blocks:
    """Multiply each task's features with those of the tasks before it, in their dtype.

    >>> overlaps([Factors(torch.eye(2, 1), torch.ones(1), torch.eye(1, 3))] * 2)
    [[], [tensor([[1.]])]]
    """
    pairs = [(one, other) for task, one in enumerate(features) for other in features[:task]]
    shapes = [(len(one.s), len(other.s)) for one, other in pairs]
    memory = features[0].u.new_empty(sum(map(prod, shapes)))  # one allocation: freed as a whole
    blocks = [part.view(shape) for part, shape in zip(memory.split([*map(prod, shapes)]), shapes, strict=True)]
    for (one, other), block in zip(pairs, blocks, strict=True):
        torch.mm(one.u.mT, other.u, out=block).mul_(one.vh @ other.vh.mT)
    parts = iter(blocks)
    return [list(islice(parts, task)) for task in range(len(features))]


def _by_steps(blocks: Blocks, right: Tensor, sizes: Sequence[int]) -> Tensor | None:
    """Solve by conjugate gradients; None if the result is not exact enough.

    Rounding the system's entries acts like a small random change of the right-hand side. The norm of the solutions for
    random right-hand sides therefore estimates the error, in the norm that the system defines: the Frobenius norm of
    the merged matrix.
    """
    generator = torch.Generator().manual_seed(0)
    probes = torch.randint(0, 2, (PROBES, len(right)), generator=generator).mul_(2).sub_(1).to(right)
    wanted = torch.cat([right.unsqueeze(0), probes])
    solution_and_probes, left = torch.zeros_like(wanted), wanted.clone()
    direction, size = left.clone(), left.square().sum(1)
    enough = size * RESIDUAL**2
    for _ in range(STEPS):
        if bool((size <= enough).all()):
            break
        image = _product(blocks, direction, sizes)
        step = (size / (direction * image).sum(1)).nan_to_num_().unsqueeze(1)
        solution_and_probes.addcmul_(step, direction)
        left.addcmul_(step, image, value=-1)
        before, size = size, left.square().sum(1)
        direction.mul_((size / before).nan_to_num_().unsqueeze(1)).add_(left)
    else:
        return None
    solution, growth = solution_and_probes[0], (solution_and_probes[1:] * probes).mean(1).max().sqrt()
    rounding = torch.finfo(torch.float32).eps * growth * solution.norm()
    return solution if bool(rounding <= EXACT * (solution @ right).sqrt()) else None


def _product(blocks: Blocks, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Multiply the system by the rows of x (C, K): its identity part in float64, the rest in the blocks' dtype."""
    out = x * (1 + RIDGE)
    parts, outs = [each.split(sizes, 1) for each in (x, out)]
    for task, row in enumerate(blocks):
        for other, block in enumerate(row):
            outs[task].add_(parts[other].to(block.dtype) @ block.mT)
            outs[other].add_(parts[task].to(block.dtype) @ block)
    return out


def _by_cholesky(blocks: Blocks, right: Tensor, sizes: Sequence[int]) -> Tensor:
    """Solve by the Cholesky factor, which overwrites the blocks."""
    diagonal: list[Tensor] = []
    halves = [part.unsqueeze(1).clone() for part in right.split(sizes)]
    for task, row in enumerate(blocks):
        own = torch.eye(sizes[task], dtype=right.dtype, device=right.device).mul_(1 + RIDGE)
        for other, block in enumerate(row):
            for before in range(other):
                block.addmm_(row[before], blocks[other][before].mT, alpha=-1)
            linalg.solve_triangular(diagonal[other].mT, block, upper=True, left=False, out=block)
            own.addmm_(block, block.mT, alpha=-1)
            halves[task].addmm_(block, halves[other], alpha=-1)
        diagonal.append(linalg.cholesky(own))
        halves[task] = linalg.solve_triangular(diagonal[task], halves[task], upper=False)
    for task in reversed(range(len(sizes))):
        halves[task] = linalg.solve_triangular(diagonal[task].mT, halves[task], upper=True)
        for other, block in enumerate(blocks[task]):
            halves[other].addmm_(block.mT, halves[task], alpha=-1)
    return torch.cat(halves).squeeze(1)
