"""The steps of Decom-Renorm-Merge (Chaichana et al., 2025, arXiv:2505.23117), exact to float64 where it matters.

Which entries are pruned and which signs are elected depends on last digits. The tasks' unit rows are kept in float32,
which halves their memory, and the few entries that rounding may decide are recomputed in float64. Rounding preserves
the order of magnitudes, so at the cut these are only the entries that round to the same value.
Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side, P places in (T, K, N).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.counts import count_of, note_kept
from merganser.linalg.joint import JointFactors, joint_qr
from merganser.linalg.thresholds import in_memory, thresholds
from merganser.operators.joint_layers import NO_LENGTH, NOTHING, joint_factors

SAME = 1e-9  # relative difference up to which two magnitudes count as equal
BLOCK = 2**18  # entries of each task that are averaged at a time
PLACES = 64  # entries that are recomputed at a time
DOUBTS = 2**11  # the most entries to recompute, each by a dot product; beyond that everything is redone in float64

Decomposition = Literal["svd", "qr"]
Pruning = Literal["together", "each"]  # all tasks' entries by one cut, or each task's by its own
Averaging = Literal["disjoint", "simple", "sum"]  # over the tasks that are counted, over all, or no average


@dataclass(frozen=True)
class JointSpace:
    """T matrices in the left basis they share: task t is u @ diag(s[t]) @ vh[t], the rows of vh[t] unit or zero."""

    u: Tensor  # (M, K)
    s: Tensor  # (T, K)
    vh: Tensor  # (T, K, N), in float64, or rounded to float32; without renormalisation no unit rows
    deltas: Tensor | None = None  # (T, M, N): to recompute rounded entries from

    def exact(self, places: Tensor) -> Tensor:
        """Return the entries s * vh of rounded rows at P places (P, 3) before they were rounded, in float64."""
        left, right = self.u.mT, cast(Tensor, self.deltas).mT
        parts = (part.unbind(1) for part in places.split(PLACES))
        return torch.cat([self.s[:0, 0], *((left[k] * right[t, n]).sum(1) for t, k, n in parts)])


def decomposed(layer: LayerDeltas | LayerLowRank, decomposition: Decomposition) -> JointFactors:
    """Decompose a layer's T matrices side by side: by their SVD, or by QR (DRM, appendix E.2)."""
    if decomposition == "svd":
        return joint_factors(layer)
    return joint_qr((layer.dense() if isinstance(layer, LayerLowRank) else layer).deltas)


def leading_joint_directions(space: JointFactors, fraction: float) -> JointFactors:
    """Keep the leading floor(fraction * K) of K joint directions, and one at least (DRM, appendix H.1)."""
    kept = min(max(count_of(fraction, len(space.s)), 1), len(space.s))
    if kept == len(space.s):
        return space
    return space._replace(
        u=space.u[:, :kept], s=space.s[:kept], coordinates=lambda task: space.coordinates(task)[:kept]
    )


def joint_space(layer: LayerDeltas | LayerLowRank) -> JointSpace:
    """Decompose a layer's T matrices side by side and renormalise each task's rows (equations 1 to 6), in float64."""
    return renormalised(joint_factors(layer), layer, torch.float64)


def renormalised(
    space: JointFactors, layer: LayerDeltas | LayerLowRank, dtype: torch.dtype, unit_length: bool = True
) -> JointSpace:
    """Scale each task's rows to unit length, or by the joint singular values alone: then they stay the rows of V_t^T.

    They are rounded to the dtype only if they can be recomputed.
    """
    deltas = layer.deltas if space.is_product and dtype != torch.float64 and isinstance(layer, LayerDeltas) else None
    tasks, rank = len(layer.tasks), len(space.s)
    s = space.s.new_empty(tasks, rank)
    vh = space.s.new_empty((tasks, rank, layer.shape[1]), dtype=torch.float64 if deltas is None else dtype)
    for task, (lengths, unit) in enumerate(zip(s, vh, strict=True)):
        rows = space.coordinates(task)
        torch.linalg.vector_norm(rows, dim=1, out=lengths)
        lengths[lengths <= NO_LENGTH * space.s] = 0
        if not unit_length:
            lengths.copy_(space.s.where(lengths > 0, 0.0))
        unit.copy_(rows.div_(torch.where(lengths > 0, lengths, torch.inf).unsqueeze(1)))
        del rows  # free the memory before the next task's are computed
    return JointSpace(space.u, s, vh, deltas)


def prune_(space: JointSpace, density: float) -> bool:
    """Zero all but the floor(density * n) largest of the n unit rows' entries and those equal to the smallest kept.

    Entries that differ by rounding count as equal, so that the order of the tasks does not matter.
    Returns False, with the rows half pruned, if too many entries round to the same value.
    """
    cuts = thresholds(in_memory(*(part.reshape(1, -1) for part in space.vh)), partial(count_of, density))
    least = torch.tensor(cuts.least[0], dtype=space.vh.dtype, device=space.vh.device)
    slack = SAME if space.deltas is None else 4 * torch.finfo(space.vh.dtype).eps
    for unit in space.vh:
        unit.masked_fill_((unit.abs() >= (least * (1 - slack)).clamp(min=NOTHING)).logical_not_(), 0)
    kept = sum(int(unit.count_nonzero()) for unit in space.vh)
    if space.deltas is None or not NOTHING < least < torch.inf:
        note_kept(kept, cuts.entries)
        return True
    places = torch.cat([_placed(task, (unit != 0) & (unit.abs() <= least)) for task, unit in enumerate(space.vh)])
    if len(places) > DOUBTS:
        return False
    t, k, n = places.unbind(1)
    exact = space.exact(places).abs_() / space.s[t, k]
    at_cut = exact[space.vh[t, k, n].abs() == least]
    wanted = count_of(density, cuts.entries) - (kept - len(places))  # of those that round to the least
    dropped = exact < at_cut.topk(wanted).values[-1] * (1 - SAME)
    space.vh[t[dropped], k[dropped], n[dropped]] = 0
    note_kept(kept - int(dropped.sum()), cuts.entries)
    return True


def prune_all_(space: JointSpace, density: float, pruning: Pruning) -> bool:
    """Prune as `prune_` does, all tasks together or each by itself."""
    if pruning == "together":
        return prune_(space, density)
    spaces = (
        replace(space, s=space.s[one], vh=space.vh[one], deltas=None if space.deltas is None else space.deltas[one])
        for one in (slice(task, task + 1) for task in range(len(space.vh)))
    )
    return all(prune_(own, density) for own in spaces)


def _placed(task: int, mask: Tensor) -> Tensor:
    """Return the indices (P, 3) of a task's marked entries (K, N)."""
    return torch.nn.functional.pad(mask.nonzero(), (1, 0), value=task)


def pruned(space: JointSpace, density: float) -> Tensor:
    """Prune the renormalised entries of all tasks together, then rescale the rows: (T, K, N).

    >>> unit = torch.tensor([[[0.6, 0.8]], [[0.0, 1.0]]], dtype=torch.float64)
    >>> pruned(JointSpace(torch.eye(1), torch.tensor([[5.0], [2.0]], dtype=torch.float64), unit), 0.5)
    tensor([[[0., 4.]],
    <BLANKLINE>
            [[0., 2.]]], dtype=torch.float64)
    """
    kept = replace(space, vh=space.vh.clone())
    prune_(kept, density)
    return kept.vh.mul_(space.s.unsqueeze(2))


def averaged(space: JointSpace, elect: bool = True, averaging: Averaging = "disjoint") -> Tensor | None:
    """Elect a sign per entry of S V^T and average the tasks that agree, or all without election: (K, N).

    Returns None if rounding may decide the sign of too many entries.
    """
    tasks, rank, columns = space.vh.shape
    s, doubts = space.s.to(space.vh.dtype).unsqueeze(2), []
    merged = space.vh.new_empty(rank, columns)
    step = max(1, BLOCK // max(1, columns))
    for first in range(0, max(1, rank), step):
        rows = slice(first, first + step)
        doubt = _merge_entries(space.vh[:, rows], s[:, rows], merged[rows], elect, averaging)
        doubts.append(doubt.nonzero() + torch.tensor([first, 0], device=doubt.device))
    k, n = torch.cat(doubts).T
    if space.deltas is None or len(k) == 0:
        return merged
    some = (space.vh[:, k, n] != 0).nonzero()
    if len(some) > DOUBTS:
        return None
    t, place = some.unbind(1)
    entries = space.s.new_zeros(tasks, len(k), 1)
    entries[t, place, 0] = space.exact(torch.stack([t, k[place], n[place]], 1))
    exact = entries.new_empty(len(k), 1)
    _merge_entries(entries, torch.ones_like(entries), exact, elect, averaging)
    merged[k, n] = exact.squeeze(1).to(merged.dtype)
    return merged


def _merge_entries(units: Tensor, scales: Tensor, out: Tensor, elect: bool, averaging: Averaging) -> Tensor:
    """Write to `out` the mean of the entries units * scales (T, K, N) of the sign with the larger sum; 0 on a draw.

    Without election, of the entries of both signs. Returns a mask of the other entries whose sign rounding may have
    decided.
    """
    sums, counts = out.new_zeros(2, *out.shape), out.new_zeros(2, *out.shape)
    for unit, scale in zip(units, scales, strict=True):
        entries = unit * scale
        counts[0] += entries > 0
        counts[1] += entries < 0
        sums[0] += entries.clamp(min=0)
        sums[1] -= entries.clamp_(max=0)
    lead, weight = sums[0] - sums[1], sums[0] + sums[1]
    if not elect:
        out.copy_(lead).div_(_divisor(counts.sum(0), len(units), averaging))
        return torch.zeros_like(out, dtype=torch.bool)
    means = sums.div_(_divisor(counts, len(units), averaging))
    torch.where(lead > 0, means[0], -means[1], out=out)
    out.masked_fill_(lead.abs_() <= SAME * weight, 0)
    rounding = (len(units) + 4) * torch.finfo(out.dtype).eps
    return (lead <= rounding * weight) & (weight > 0)


def _divisor(counts: Tensor, tasks: int, averaging: Averaging) -> Tensor | int:
    if averaging == "disjoint":
        return counts.clamp_(min=1)
    return tasks if averaging == "simple" else 1


def transposed(layer: LayerDeltas | LayerLowRank) -> LayerDeltas | LayerLowRank:
    """Transpose each task's matrix."""
    if isinstance(layer, LayerLowRank):
        left, right = (tuple(side.mT for side in sides) for sides in (layer.right, layer.left))
        return replace(layer, left=left, right=right)
    return replace(layer, deltas=layer.deltas.mT)
