"""Solve for the strengths of all tasks' singular triples together (SFTM, arXiv:2502.10698).

Equation 4 with b = s * alpha: u_i^T (sum_j b_j u_j v_j^T) v_i = s_i for the triples i of all tasks. With unit vectors
the system (U^T U) * (V^T V) is positive semidefinite. The triples of one task are orthogonal, so its diagonal blocks
are the identity; of the others only those below the diagonal are computed.
Shape legend: T tasks, K triples of all tasks, C right-hand sides.
"""

from collections.abc import Sequence
from itertools import islice
from math import prod

import torch
from torch import Tensor, linalg

from merganser.linalg.decompositions import Factors

RIDGE = 1e-6  # on the system's unit diagonal: tasks that share a feature make it singular
RESIDUAL = 1e-9  # of the right-hand side's norm
STEPS = 50  # a step takes a hundredth of the time to build the system; if these do not suffice, float32 does not either
EXACT = 5e-7  # of the merged matrix's norm: the largest rounding error accepted
PROBES = 7  # random right-hand sides; solving for 7 takes no longer than for one

Blocks = list[list[Tensor]]  # row by row, the T * (T - 1) / 2 blocks below the diagonal


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
    found = (
        _by_steps(blocks, right, sizes) if features[0].u.dtype == torch.float32 else _by_cholesky(blocks, right, sizes)
    )
    return None if found is None else found.split(sizes)


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
    found = iter(blocks)
    return [list(islice(found, task)) for task in range(len(features))]


def _by_steps(blocks: Blocks, right: Tensor, sizes: Sequence[int]) -> Tensor | None:
    """Solve by conjugate gradients; None if the result is not exact enough.

    Rounding the system's entries acts like a small random change of the right-hand side. The norm of the solutions for
    random right-hand sides therefore estimates the error, in the norm that the system defines: the Frobenius norm of
    the merged matrix.
    """
    generator = torch.Generator().manual_seed(0)
    probes = torch.randint(0, 2, (PROBES, len(right)), generator=generator).mul_(2).sub_(1).to(right)
    wanted = torch.cat([right.unsqueeze(0), probes])
    found, left = torch.zeros_like(wanted), wanted.clone()
    direction, size = left.clone(), left.square().sum(1)
    enough = size * RESIDUAL**2
    for _ in range(STEPS):
        if bool((size <= enough).all()):
            break
        image = _product(blocks, direction, sizes)
        step = (size / (direction * image).sum(1)).nan_to_num_().unsqueeze(1)
        found.addcmul_(step, direction)
        left.addcmul_(step, image, value=-1)
        before, size = size, left.square().sum(1)
        direction.mul_((size / before).nan_to_num_().unsqueeze(1)).add_(left)
    else:
        return None
    solution, growth = found[0], (found[1:] * probes).mean(1).max().sqrt()
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
