"""Weighted sums of the tasks' parts, many at a time, with the parts read once.

Legend: T tasks, G sums.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from merganser.checkpoints.kinds import added
from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.views import in_file
from merganser.overlays import LowRank, OverlayFile

SIDES = {"u": 1, "s": 0, "vh": 0}  # of a low-rank part, and the dimension that counts its triples
BUDGET = 2**30  # bytes that all tasks' parts, multiplied out, may take in memory
AT_ONCE = 2**25  # bytes of the sums that are computed together
Sums = Callable[[Tensor], Tensor]  # by the tasks' weights (G, T), in the file's order: a parameter (G, ...)


@dataclass(frozen=True)
class Mixtures:
    """A shared model plus weighted sums of the tasks' parts, parameter by parameter."""

    shared: Checkpoint
    sums: dict[str, Sums]  # of the parameters that tasks have parts of
    size: int  # of one sum of all, in bytes

    def models(self, weights: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield, for each row of weights (G, T), the changed parameters of the shared model."""
        for rows in weights.float().split(max(1, AT_ONCE // self.size)):
            sums = {name: summed(rows) for name, summed in self.sums.items()}
            for row in range(len(rows)):
                yield dict(in_file(self.shared, ((name, sum_of_rows[row]) for name, sum_of_rows in sums.items())))


def open_mixtures(shared: Checkpoint, overlays: OverlayFile, budget: int = BUDGET) -> Mixtures:
    """Read the parts of all tasks: multiplied out if all of them fit into the budget, else low-rank ones as factors.

    Others that do not fit are read again for each sum.
    """
    size = 4 * sum(prod(shared.spec(name).shape) for name in overlays.parameters)
    whole = len(overlays.tasks) * size <= budget
    sums = {name: _sums_of(overlays, name, shared.read(name), whole) for name in overlays.parameters}
    return Mixtures(shared, sums, max(1, size))


def _sums_of(overlays: OverlayFile, name: str, start: Tensor, whole: bool) -> Sums:
    """Return a function that adds weighted sums of a parameter's parts to the shared model's, with one rounding."""
    shape, dtype, tasks = tuple(start.shape), start.dtype, overlays.tasks
    if whole:
        deltas = [overlays.delta(task, name, shape) for task in tasks]
        stack = torch.stack([start.float(), *(torch.zeros(shape) if x is None else x for x in deltas)]).flatten(1)
        return lambda weights: (pad(weights, (1, 0), value=1.0) @ stack).view(-1, *shape).to(dtype)
    if overlays.kind(name) == LowRank.kind:
        parts = [(task, part) for task, part in enumerate(overlays.low_rank(name)) if part is not None]
        owners = torch.tensor([task for task, part in parts for _ in part.s])
        u, s, vh = (torch.cat([getattr(part, side).float() for _, part in parts], dim) for side, dim in SIDES.items())
        matrix = start.float().reshape(len(u), -1)
        return lambda weights: (
            torch.baddbmm(matrix, u * (s * weights[:, owners]).unsqueeze(1), vh.expand(len(weights), -1, -1))
            .view(-1, *shape)
            .to(dtype)
        )

    def read(weights: Tensor) -> Tensor:
        named = [{task: share for task, share in zip(tasks, row, strict=True) if share} for row in weights.tolist()]
        deltas = [overlays.mixture(shares, name, shape) for shares in named]
        return torch.stack([start if delta is None else added(start, delta) for delta in deltas])

    return read
