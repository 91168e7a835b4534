"""Data for plots of one layer: pruning by basis vector, sign agreement, and products of singular vectors.

Shape legend: T tasks, M rows, N columns, K joint directions, k vectors shown of one task.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.linalg.thresholds import in_memory, thresholds
from merganser.measures.agreement import NOISE, sign_shares
from merganser.operators.drm import JointSpace

PRUNED = 0.5  # of the entries, as in DRM's figure 3
BANDS = 64  # neighbouring basis vectors are averaged to at most so many
BINS = 10  # of shares of the majority's sign, from one half to one
SHOWN = 16  # singular vectors of all tasks together
DIGITS = 3  # of what is only looked at


def dropped_shares(space: JointSpace) -> dict[str, list[list[float]]]:
    """Return for each task and basis vector the share of its entries that pruning half of all entries drops.

    `renormalised`: rows scaled to unit length, as DRM prunes them; `plain`: the rows of V_t^T unscaled (DRM, figure
    3). In the order of the joint singular values, with neighbours averaged if there are more than 64.
    """
    lengths = space.s / space.s.norm(dim=0).clamp(min=torch.finfo(space.s.dtype).tiny)
    rows = {"renormalised": space.vh, "plain": space.vh * lengths.unsqueeze(2)}
    return {name: [_bands(task) for task in _dropped(each)] for name, each in rows.items()}


def _dropped(rows: Tensor) -> Tensor:
    """Return the share of each vector's entries (T, K, N) below the common cut: (T, K)."""
    least = thresholds(in_memory(rows.reshape(1, -1)), partial(count_of, 1 - PRUNED)).least[0]
    return 1 - (rows.abs() >= least).double().mean(dim=2)


def _bands(values: Tensor) -> list[float]:
    count = min(BANDS, len(values))
    return [round(float(band.mean()), DIGITS) for band in values.tensor_split(count)] if count else []


def agreement_histograms(space: JointSpace, deltas: Tensor) -> dict[str, list[int]]:
    """Count the entries by the majority sign's share, in bins from 0.5 to 1: of the weights, and in the joint basis.

    Entries that no task changes are not counted.
    """
    shares = {"weights": sign_shares(deltas), "joint": sign_shares(space.vh, NOISE)}
    places = {name: (each + NOISE).clamp(max=1) for name, each in shares.items()}  # 3 of 5 is no less than 0.6
    return {
        name: [int(count) for count in torch.histc(each, bins=BINS, min=0.5, max=1.0)] for name, each in places.items()
    }


def vector_products(tasks: Sequence[Factors]) -> dict[str, Any]:
    """Return U^T U and V^T V of the tasks' leading singular vectors side by side, 16 over all tasks (TSV).

    >>> e1 = torch.eye(2)[:, :1]
    >>> vector_products([Factors(e1, torch.ones(1), e1.T), Factors(e1, torch.ones(1), torch.eye(2)[1:])])
    {'each': [1, 1], 'u': [[1.0, 1.0], [1.0, 1.0]], 'v': [[1.0, 0.0], [0.0, 1.0]]}
    """
    kept = max(1, SHOWN // len(tasks))
    stacks = {
        "u": torch.cat([f.u[:, :kept] for f in tasks], dim=1).double(),
        "v": torch.cat([f.vh[:kept] for f in tasks]).double().mT,
    }
    widths = [min(kept, len(f.vh)) for f in tasks]
    products = {name: (stack.mT @ stack).tolist() for name, stack in stacks.items()}
    return {
        "each": widths,
        **{name: [[round(value, DIGITS) for value in row] for row in rows] for name, rows in products.items()},
    }
