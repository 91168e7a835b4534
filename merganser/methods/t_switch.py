"""T-Switch: each task's largest entries by their signs alone, with one scale for each sign."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.cuts import Cut, each_trimmed, kept
from merganser.merging.method import Densities, method
from merganser.operators.ties import vector_cut
from merganser.overlays.budget import by_density
from merganser.overlays.parts import Parts, Signs, signs


def scales_of(layers: LayerSource, cut: Cut) -> Tensor:
    """Return the root mean square of each task's kept entries by sign over the whole vector, signed: (T, 2)."""
    summed, counts = torch.stack(list(layers.map(partial(squares, cut=cut)))).sum(0)
    return (summed / counts.clamp(min=1)).sqrt() * torch.tensor([1.0, -1.0])


def squares(layer: LayerDeltas, cut: Cut) -> Tensor:
    """Sum the squares of each task's kept entries by sign, and count them: (2, T, 2), on the CPU."""
    summed = torch.zeros(2, len(layer.tasks), 2, dtype=torch.float64, device=layer.deltas.device)
    for block in each_trimmed(layer.deltas, cut):
        sides = block.clamp(min=0), block.clamp(max=0)
        summed[0] += torch.stack([side.double().square_().sum(1) for side in sides], dim=1)
        summed[1] += torch.stack([(side != 0).sum(1) for side in sides], dim=1)
    return summed.cpu()


@method(
    family="masked",
    formula=r"\sigma_t^{\pm} \odot m_t \odot \mathrm{sgn}(\Delta_t), \quad m_t = \mathrm{top}_d |\Delta_t|",
    paper="Qi et al., CVPR 2025, arXiv:2412.00054",
    law="at density 1, with one magnitude per sign, it is exact",
    ours=("density",),
    within=by_density(Signs),
)
def t_switch(layers: LayerSource, *, density: Densities = 0.5) -> Callable[[LayerDeltas], Parts]:
    """Keep where each task's largest entries are and their signs, with a scale for the positive, one for the negative.

    `density` is a share of the whole vector. A scale is the root mean square of the entries it stands for, over the
    whole vector too: the switch keeps the length of what it replaces, sign by sign, as the groups of dts_t do (the mean
    would be nearest entry by entry, and always too short).
    """
    cut = vector_cut(layers, density)
    scales = scales_of(layers, cut)

    def merge(layer: LayerDeltas) -> Parts:
        masks = kept(layer.deltas, cut)
        own = zip(layer.tasks, scales, layer.deltas, masks, strict=True)
        return Parts({task: signs(delta, mask, scale) for task, scale, delta, mask in own if mask.any()})

    return merge
