"""BYOM-FFT: one shared model by task arithmetic, and for each task the entries in which its own differs most."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.cuts import kept
from merganser.merging.method import Densities, Scaling, method
from merganser.operators.sums import scaled_sum
from merganser.operators.ties import vector_cut
from merganser.overlays.budget import by_density
from merganser.overlays.parts import Parts, Sparse, sparse


def differences(block: Tensor, scaling: float) -> Tensor:
    """Return the tasks' deltas (T, ...) without what they share."""
    return block - scaled_sum(block, scaling)


@method(
    family="masked",
    formula=r"M + \mathrm{top}_d (\Delta_t - M), \quad M = \lambda \sum_j \Delta_j",
    efficiency="Medium",
    paper="Jiang et al., 2023, arXiv:2310.01886",
    law="at density 1 each task gets its own model exactly",
    ours=("scaling",),
    within=by_density(Sparse),
)
def byom_fft(
    layers: LayerSource, *, scaling: Scaling = 0.3, density: Densities = 0.1
) -> Callable[[LayerDeltas], Parts]:
    """Share the scaled sum of the tasks' deltas; restore, for each task, the entries in which its own differs most.

    `density` is the share of the whole vector that is restored. A restored entry is stored as the task's own, so that
    adding it to what is shared rounds nothing.
    """
    own = partial(differences, scaling=scaling)
    cut = vector_cut(layers, density, own)

    def merge(layer: LayerDeltas) -> Parts:
        masks = kept(layer.deltas, cut, own)
        restored = zip(layer.tasks, layer.deltas, masks, strict=True)
        shared = scaled_sum(layer.deltas, scaling)
        return Parts({task: sparse(delta, mask) for task, delta, mask in restored}, unified=shared)

    return merge
