"""The steps of Decom-Renorm-Merge (Chaichana et al., 2025, arXiv:2505.23117), in float64.

Which entries are pruned hangs on their last digits.
Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.layers import Factors, LayerDeltas, LayerLowRank
from merganser.linalg.joint import joint
from merganser.linalg.select import cut_at
from merganser.linalg.svd import joint_low_rank
from merganser.operators.disjoint import disjoint_mean
from merganser.operators.elect import elect_sign
from merganser.operators.joint import NO_LENGTH, NOTHING

SAME = 1e-9  # relative: magnitudes that differ by rounding


class JointSpace(NamedTuple):
    """T matrices in the left basis they share: task t is u @ diag(s[t]) @ vh[t], the rows of vh[t] unit or zero."""

    u: Tensor  # (M, K)
    s: Tensor  # (T, K)
    vh: Tensor  # (T, K, N)


def joint_space(layer: LayerDeltas | LayerLowRank) -> JointSpace:
    """Decompose a layer's T matrices side by side and renormalise each task's rows (equations 1 to 6)."""
    if isinstance(layer, LayerLowRank):
        return renormalised(joint_low_rank(layer.left, layer.right), len(layer.tasks))
    return renormalised(joint(layer.deltas), len(layer.tasks))


def renormalised(factors: Factors, tasks: int) -> JointSpace:
    """Cut the joint factors (M, K), (K), (K, T * N) into tasks, and give their rows unit length in place."""
    rows = factors.vh.unflatten(1, (tasks, -1)).transpose(0, 1)
    lengths = rows.norm(dim=2)
    some = lengths > NO_LENGTH
    rows.div_(torch.where(some, lengths, torch.inf).unsqueeze(2))
    return JointSpace(factors.u, factors.s * torch.where(some, lengths, 0), rows)


def largest(values: Tensor, density: float) -> Tensor:
    """Mark the floor(density * n) largest magnitudes of n, and all that equal the least of them but for rounding.

    So identical tasks are pruned alike, and the order of the tasks changes nothing.
    """
    cut = cut_at(lambda: (part.reshape(1, -1) for part in values), density)
    least = torch.tensor(cut.patterns, device=values.device).view(values.dtype)[0]  # not a number if none is kept
    return torch.stack([part.abs() >= (least * (1 - SAME)).clamp(min=NOTHING) for part in values])


def pruned(space: JointSpace, density: float) -> Tensor:
    """Keep the largest of all tasks' renormalised entries together, then give the rows their scale back: (T, K, N)."""
    return torch.where(largest(space.vh, density), space.vh, 0).mul_(space.s.unsqueeze(2))


def drm(layer: LayerDeltas | LayerLowRank, density: float) -> Tensor:
    """Merge T matrices in their joint space: prune, elect a sign per entry, average the entries that agree: (M, N)."""
    space = joint_space(layer)
    entries = pruned(space, density)
    return (space.u @ disjoint_mean(entries, elect_sign(entries))).to(layer.dtype)


def transposed(layer: LayerDeltas | LayerLowRank) -> LayerDeltas | LayerLowRank:
    """Transpose each task's matrix."""
    if isinstance(layer, LayerLowRank):
        left, right = (tuple(side.mT for side in sides) for sides in (layer.right, layer.left))
        return replace(layer, left=left, right=right)
    return replace(layer, deltas=layer.deltas.mT)
