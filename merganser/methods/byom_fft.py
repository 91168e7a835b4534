"""BYOM-FFT: one shared model by task arithmetic, and for each task the entries in which its own differs most."""

from functools import partial

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.select import Cut, kept
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.sums import scaled_sum
from merganser.operators.trim import layer_cuts
from merganser.overlays.masked import sparse
from merganser.overlays.parts import Parts


def differences(block: Tensor, scaling: float) -> Tensor:
    """Return the tasks' deltas (T, ...) without what they share."""
    return block - scaled_sum(block, scaling)


def survey(layers: LayerSource, *, scaling: float, density: float) -> dict[str, Cut]:
    """Find, for each layer, where each task's differences are cut: one threshold over the whole vector."""
    return layer_cuts(layers, density, partial(differences, scaling=scaling))


@method(
    reads="deltas",
    family="masked",
    formula=r"M + \mathrm{top}_d (\Delta_t - M), \quad M = \lambda \sum_j \Delta_j",
    involvement="NDI",
    efficiency="Medium",
    paper="Jiang et al., 2023, arXiv:2310.01886",
    cost="elementwise",
    ours=("scaling",),
    overlay=True,
    vectors="alike",
    prepare=survey,
)
def byom_fft(layer: LayerDeltas, *, scaling: Scaling = 0.3, density: PositiveFraction = 0.1) -> Parts:
    """Share the scaled sum of the tasks' deltas; restore, for each task, the entries in which its own differs most.

    `density` is the share of the whole vector that is restored. A restored entry is stored as the task's own, so that
    adding it to what is shared rounds nothing.
    """
    shared = scaled_sum(layer.deltas, scaling)
    masks = kept(layer.deltas, layer.prepared[layer.name], partial(differences, scaling=scaling))
    own = zip(layer.tasks, layer.deltas, masks, strict=True)
    return Parts({task: sparse(delta, mask) for task, delta, mask in own}, unified=shared)
