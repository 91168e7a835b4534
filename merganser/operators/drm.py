"""The steps of Decom-Renorm-Merge (Chaichana et al., 2025, arXiv:2505.23117), in float64.

Which entries are pruned hangs on their last digits.
Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg.svd import joint
from merganser.operators.counts import count_of
from merganser.operators.disjoint import disjoint_mean
from merganser.operators.elect import elect_sign

NO_LENGTH = 1e-7  # of a unit row: what rounding leaves of a zero row, which unit length would magnify
SAME = 1e-9  # relative: magnitudes that differ by rounding


class JointSpace(NamedTuple):
    """T matrices in the left basis they share: task t is u @ diag(s[t]) @ vh[t], the rows of vh[t] unit or zero."""

    u: Tensor  # (M, K)
    s: Tensor  # (T, K)
    vh: Tensor  # (T, K, N)


def joint_space(deltas: Tensor) -> JointSpace:
    """Decompose (T, M, N) deltas side by side and renormalise each task's rows (equations 1 to 6)."""
    u, s, vh = joint(deltas)
    rows = vh.unflatten(1, (deltas.shape[0], deltas.shape[2])).transpose(0, 1)
    lengths = rows.norm(dim=2)
    lengths = torch.where(lengths > NO_LENGTH, lengths, 0)
    return JointSpace(u, s * lengths, torch.where(lengths.unsqueeze(2) > 0, rows / lengths.unsqueeze(2), 0))


def largest(values: Tensor, density: float) -> Tensor:
    """Mark the floor(density * n) largest magnitudes, and all that equal the least of them but for rounding.

    So identical tasks are pruned alike, and the order of the tasks changes nothing.
    """
    magnitudes, count = values.abs(), count_of(density, values.numel())
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    least = magnitudes.flatten().kthvalue(values.numel() - count + 1).values
    return magnitudes >= least * (1 - SAME)


def pruned(space: JointSpace, density: float) -> Tensor:
    """Keep the largest of all tasks' renormalised entries together, then give the rows their scale back: (T, K, N)."""
    return space.s.unsqueeze(2) * (space.vh * largest(space.vh, density))


def drm(deltas: Tensor, density: float) -> Tensor:
    """Merge (T, M, N) deltas in their joint space: prune, elect a sign per entry, average the entries that agree."""
    space = joint_space(deltas)
    entries = pruned(space, density)
    return (space.u @ disjoint_mean(entries, elect_sign(entries))).to(deltas.dtype)
