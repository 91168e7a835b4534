"""T-Switch: each task's largest entries by their signs alone, with one scale for each sign."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.linalg.select import Cut, kept
from merganser.operators.trim import with_cuts
from merganser.overlays.masked import signs
from merganser.overlays.parts import Parts
from merganser.registry import PositiveFraction, method


@dataclass(frozen=True)
class WholeVector:
    """Where each layer is cut, and each task's scales (T, 2): of its positive entries, and of its negative, signed."""

    cuts: dict[str, Cut]
    scales: Tensor


def survey(layers: LayerSource, *, density: float) -> WholeVector:
    """Find the cuts, and the root mean square of each task's kept entries by sign over the whole vector."""
    cuts: dict[str, Cut] = {}
    sums = torch.zeros(len(layers.tasks), 2, 2, dtype=torch.float64)
    for layer, cut in with_cuts(layers, density):
        cuts[layer.name] = cut
        sums += squares(layer, cut)
        del layer  # before the next is read
    summed, counts = sums.unbind(2)
    return WholeVector(cuts, (summed / counts.clamp(min=1)).sqrt() * torch.tensor([1.0, -1.0]))


def squares(layer: LayerDeltas, cut: Cut) -> Tensor:
    """Sum the squares of each task's kept entries by sign, and count them: (T, 2, 2), on the CPU."""
    return torch.stack(
        [
            torch.stack([_squares(delta[mask & side]) for side in (delta > 0, delta < 0)])
            for delta, mask in switched(layer, cut)
        ]
    )


def switched(layer: LayerDeltas, cut: Cut) -> Iterator[tuple[Tensor, Tensor]]:
    """Give each task's delta and the mask of its entries that are kept; a zero has no sign, so it is none of them."""
    return ((delta, mask & (delta != 0)) for delta, mask in zip(layer.deltas, kept(layer.deltas, cut), strict=True))


@method(
    reads="deltas",
    family="masked",
    formula=r"\sigma_t^{\pm} \odot m_t \odot \mathrm{sgn}(\Delta_t), \quad m_t = \mathrm{top}_d |\Delta_t|",
    involvement="NDI",
    efficiency="High",
    paper="Qi et al., CVPR 2025, arXiv:2412.00054",
    cost="elementwise",
    ours=("density",),
    overlay=True,
    vectors="alike",
    prepare=survey,
)
def t_switch(layer: LayerDeltas, *, density: PositiveFraction = 0.5) -> Parts:
    """Keep where each task's largest entries are and their signs, with a scale for the positive, one for the negative.

    `density` is a share of the whole vector. A scale is the root mean square of the entries it stands for, over the
    whole vector too: the switch keeps the length of what it replaces, sign by sign, as the groups of dts_t do (the mean
    would be nearest entry by entry, and always too short).
    """
    whole: WholeVector = layer.prepared
    parts = {}
    for task, scales, (delta, mask) in zip(
        layer.tasks, whole.scales, switched(layer, whole.cuts[layer.name]), strict=True
    ):
        if mask.any():
            parts[task] = signs(delta, mask, scales)
    return Parts(parts)


def _squares(values: Tensor) -> Tensor:
    return torch.tensor([float(values.double().square().sum()), len(values)], dtype=torch.float64)
