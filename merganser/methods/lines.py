"""LiNeS: scale a merged delta by how deep its layers lie, shallow layers least."""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Densities, NonNegative, Scaling, method, spaced
from merganser.operators.depth import depths
from merganser.operators.sums import total
from merganser.operators.ties import Combine, unscaled_merge


@method(
    family="arithmetic",
    formula=r"\lambda \Bigl(\alpha + b \frac{l}{L - 1}\Bigr) M, "
    r"\quad M = \mathrm{inner}(\Delta_1, \ldots, \Delta_T), "
    r"\quad \alpha = \frac{1}{T} \frac{\lVert \sum_t \Delta_t \rVert_1}{\lVert M \rVert_1}",
    paper="Wang et al., ICLR 2025, arXiv:2410.17146",
    law="without a slope it is the average; with alpha it is task arithmetic outside the blocks",
    involvement="VDI",
    ours=("density", "slope", "scaling"),
    searched={"slope": spaced(0.1, 1.5, 0.1)},
)
def lines(
    layers: LayerSource,
    *,
    inner: Combine = "task_arithmetic",
    density: Densities = 0.2,
    alpha: NonNegative | None = None,
    slope: NonNegative = 0.5,
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas], Tensor]:
    """Merge by `inner`, unscaled, and scale each block by alpha plus the slope times how deep it lies, from 0 to 1.

    A block's place is the first number in its parameters' names; a parameter outside blocks is scaled by alpha. By
    default alpha brings the merge to the L1 norm of the average, which for task arithmetic is 1/T. For one task,
    the paper takes `slope` 1 - alpha: the last block keeps its delta. `density` is what ties keeps of each whole
    vector. Ties adds up the tasks that agree; the authors' code averages them.
    """
    inner_merge = unscaled_merge(layers, inner, density)
    least = matching(layers, inner_merge) if alpha is None else alpha
    parameter = layers.table.parameter
    depth = depths(map(parameter, layers.names))

    def merge(layer: LayerDeltas) -> Tensor:
        own = scaling * (least + slope * depth[parameter(layer.name)])
        return inner_merge(layer).mul_(own).to(layer.dtype)

    return merge


def matching(layers: LayerSource, merge: Callable[[LayerDeltas], Tensor]) -> float:
    """Return the factor that gives the merge of all layers the L1 norm of the deltas' average."""

    def sizes(layer: LayerDeltas) -> Tensor:
        return torch.stack([total(layer.deltas).abs().sum(), merge(layer).abs().sum()]).cpu()

    summed, merged = torch.stack(list(layers.map(sizes))).sum(0).tolist()
    return (summed / merged if merged else 1.0) / len(layers.tasks)
