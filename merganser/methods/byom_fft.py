"""BYOM-FFT: one shared model by task arithmetic, and for each task the entries in which its own differs most."""

from functools import partial

from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.linalg.select import Cut, after, cut_at, kept
from merganser.operators.streams import each_deltas
from merganser.operators.sums import scaled_sum
from merganser.overlays.masked import sparse
from merganser.overlays.parts import Parts
from merganser.registry import PositiveFraction, Scaling, method


def difference(layer: LayerDeltas, scaling: float) -> Tensor:
    """Return a layer's deltas (T, ...) without what the tasks share."""
    return layer.deltas - scaled_sum(layer.deltas, scaling)


def cuts(layers: LayerSource, *, scaling: float, density: float) -> dict[str, Cut]:
    """Find, for each layer, where each task's differences are cut: one threshold over the whole vector."""
    own = partial(difference, scaling=scaling)
    cut = cut_at(lambda: map(own, each_deltas(layers)), density)
    found, names = {}, iter(layers.names)
    for deltas in map(own, each_deltas(layers)):
        found[next(names)], cut = cut, after(deltas, cut)
        del deltas  # before the next are read
    return found


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
    prepare=cuts,
)
def byom_fft(layer: LayerDeltas, *, scaling: Scaling = 0.3, density: PositiveFraction = 0.1) -> Parts:
    """Share the scaled sum of the tasks' deltas; restore, for each task, the entries in which its own differs most.

    `density` is the share of the whole vector that is restored. A restored entry is stored as the task's own, so that
    adding it to what is shared rounds nothing.
    """
    shared = scaled_sum(layer.deltas, scaling)
    masks = kept(layer.deltas - shared, layer.prepared[layer.name])
    own = zip(layer.tasks, layer.deltas, masks, strict=True)
    return Parts({task: sparse(delta, mask) for task, delta, mask in own}, unified=shared)
