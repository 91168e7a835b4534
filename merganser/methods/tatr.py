"""Task arithmetic in the trust region: leave out the entries in which the tasks are most at odds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import cut_of
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.sums import total


def sensitivity(block: Tensor) -> Tensor:
    """Add up, entry by entry, the products of the magnitudes of each two tasks (T, C), in float64.

    >>> sensitivity(torch.tensor([[1.0, 2.0], [-3.0, 0.0], [4.0, 5.0]])).tolist()
    [19.0, 10.0]
    """
    sizes = block.double().abs()
    summed, before = torch.zeros_like(sizes[0]), sizes[0].clone()
    for size in sizes[1:]:
        summed.addcmul_(before, size)
        before += size
    return summed


@method(
    family="sparse",
    formula=r"\lambda\, \mathbb{1}\big[\Omega \text{ not in } \mathrm{top}_{1 - d}\big] \odot \sum_t \Delta_t, "
    r"\quad \Omega = \sum_{i \ne j} |\Delta_i| \odot |\Delta_j|",
    paper="Sun et al., ICLR 2025, arXiv:2501.15065",
    law="with one task, or all entries kept, it is task arithmetic",
    involvement="VDI",
    by_rows=True,
    ours=("scaling",),
)
def tatr(
    layers: LayerSource, *, density: PositiveFraction = 0.99, scaling: Scaling = 0.3
) -> Callable[[LayerDeltas], Tensor]:
    """Add up the tasks' deltas, without the entries of the whole vector that are sensitive to several tasks.

    This is the paper's variant without data, which takes a task's delta for its gradient at the base. `density` is the
    share of entries kept; of equally sensitive entries all are left out or none, and none in which only one task
    changed.
    """

    def each(function: Callable[[Tensor], Any]) -> Any:
        return layers.map(lambda layer: function(by_blocks(sensitivity, layer.deltas, torch.float64).unsqueeze(0)))

    (most,) = cut_of(each, lambda n: n - count_of(density, n)) if density < 1 else (torch.inf,)

    def merge(layer: LayerDeltas) -> Tensor:
        def trusted(block: Tensor) -> Tensor:
            return total(block).mul_(scaling).masked_fill_(sensitivity(block) > most, 0)

        return by_blocks(trusted, layer.deltas, layer.dtype)

    return merge
