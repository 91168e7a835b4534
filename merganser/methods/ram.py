"""RAM: average the entries that several tasks changed, keep those that one task changed, and strengthen these.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, by_blocks
from merganser.merging.method import NonNegative, Scaling, method

Change = Annotated[float, Field(ge=0, le=0.1)]  # of a weight, which is seldom larger


@method(
    family="sparse",
    formula=r"\lambda \Bigl( \mathbb{1}[c = 1] \odot \sum_t (1 + b \min(\rho_t, l))\, \hat\Delta_t "
    r"+ \mathbb{1}[c > 1] \odot \frac{1}{c} \sum_t \hat\Delta_t \Bigr), "
    r"\quad \hat\Delta_t = \mathbb{1}[|\Delta_t| > \epsilon] \odot \Delta_t, "
    r"\quad c = \sum_t \mathbb{1}[\hat\Delta_t \ne 0], \quad \rho_t = \frac{\text{shared}_t}{\text{own}_t}",
    paper="Yuan et al., 2026, arXiv:2601.13572",
    law="tasks that change different entries are added up; with boost 0, entries that all change are averaged",
    by_rows=True,
    ours=("scaling",),
)
def ram(
    layers: LayerSource,
    *,
    eps: Change = 1e-5,
    boost: NonNegative = 0.1,
    limit: NonNegative = 0.2,
    granularity: Literal["model", "parameter"] = "model",
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas], Tensor]:
    """Average what several tasks changed by more than eps; strengthen what one alone changed, by what it shares.

    A task's own entries are strengthened by `boost` times the ratio of the number of its shared entries to its own, up
    to `limit`; the ratio is that of the whole vector, or each parameter's. With `boost: 0` it is the paper's RAM, else
    its RAM+. mergekit's `ram` has boost 0, its `ramplus_tl` has `granularity: parameter`.
    """
    parameter = layers.table.parameter
    known: dict[str, Tensor] = {}
    for name, counts in zip(layers.names, layers.map(partial(changes, eps=eps)), strict=True):
        place = parameter(name) if granularity == "parameter" else ""
        known[place] = known.get(place, 0) + counts

    def merge(layer: LayerDeltas) -> Tensor:
        shared, own = known[parameter(layer.name) if granularity == "parameter" else ""]
        factors = 1 + boost * (shared.double() / own.clamp(min=1)).clamp(max=limit)
        return by_blocks(
            partial(_merged, eps=eps, factors=factors.to(layer.deltas.device), scaling=scaling),
            layer.deltas,
            layer.dtype,
        )

    return merge


def changes(layer: LayerDeltas, eps: float) -> Tensor:
    """Count each task's entries that other tasks changed too, and those that it alone changed: (2, T), on the CPU.

    >>> changes(LayerDeltas("w", "vector", ("a", "b"), torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])), 0.5)
    tensor([[1, 1],
            [2, 0]])
    """
    counts = torch.zeros(2, len(layer.tasks), dtype=torch.int64, device=layer.deltas.device)
    for block in blocks(layer.deltas):
        changed = block.abs() > eps
        alone = changed.sum(0) == 1
        counts += torch.stack([(changed & ~alone).sum(1), (changed & alone).sum(1)])
    return counts.cpu()


def _merged(block: Tensor, eps: float, factors: Tensor, scaling: float) -> Tensor:
    changed = block.abs() > eps
    count = changed.sum(0)
    own = block.double() * changed
    return torch.where(count == 1, factors @ own, own.sum(0) / count.clamp(min=1)).mul_(scaling)
