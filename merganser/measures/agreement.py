"""Sign agreement: the extent to which tasks change the same entry in the same direction (DRM, table 4, appendix F).

Each entry that any task changes counts once, with the share of tasks that have the majority sign: between one half (as
many plus as minus) and one. A task whose entry is zero has no sign there and is not counted.
Shape legend: T tasks, M rows, N columns, K numerical rank of the tasks' matrices side by side.
"""

from typing import TypedDict

from torch import Tensor

from merganser.linalg.cuts import cut_at, kept
from merganser.linalg.thresholds import in_memory
from merganser.operators.drm import JointSpace, pruned

DENSITY = 0.2  # of the entries, kept by pruning as in the paper
NOISE = 1e-7  # of the largest entry: smaller ones are rounding errors of zeros, in float64


class SignAgreement(TypedDict):
    """One layer's mean sign agreement; NaN where no entry has a sign."""

    weights: float  # of the deltas themselves
    weights_pruned: float  # after pruning each task to its largest entries
    joint: float  # of the coordinates in the tasks' joint left basis
    joint_pruned: float  # after pruning them to the largest of all tasks together
    joint_pruned_back: float  # the same, transformed back to weights


def sign_agreement(entries: Tensor, noise: float = 0.0) -> float:
    """Return the mean share of the majority sign over the entries of T tasks (T, ...); NaN where all are zero.

    `noise`: entries up to this share of the largest count as zero.

    >>> sign_agreement(torch.tensor([[1.0, 2.0], [1.0, -1.0]]))  # all agree on the first, half on the second
    0.75
    """
    return float(sign_shares(entries, noise).mean())


def sign_shares(entries: Tensor, noise: float = 0.0) -> Tensor:
    """Return the share of the majority sign of each entry of T tasks (T, ...) that is not zero for all of them.

    >>> sign_shares(torch.tensor([[1.0, 2.0, 0.0], [1.0, -1.0, 0.0]]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    threshold = noise * float(entries.abs().max()) if noise and entries.numel() else 0.0
    positive, negative = (entries > threshold).sum(0), (entries < -threshold).sum(0)
    signed = positive + negative
    shares = positive.maximum(negative).double() / signed
    return shares[signed > 0]


def layer_agreement(space: JointSpace, deltas: Tensor) -> SignAgreement:
    """Measure the agreement of T matrices (`deltas`: T, M, N), and of their joint space, unpruned and pruned."""
    entries = pruned(space, DENSITY)
    return SignAgreement(
        weights=sign_agreement(deltas),
        weights_pruned=sign_agreement(deltas * kept(deltas, cut_at(in_memory(deltas), DENSITY))),
        joint=sign_agreement(space.vh, NOISE),
        joint_pruned=sign_agreement(entries, NOISE),
        joint_pruned_back=sign_agreement(space.u @ entries, NOISE),
    )
