"""TALL masks: one merged task vector, and for each task a mask of the entries that are its own."""

from collections.abc import Callable, Mapping

import torch

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Densities, Thresholds, method, spaced
from merganser.operators.masks import tall_masks
from merganser.operators.ties import Combine, unscaled_merge
from merganser.overlays.parts import Masked, Parts, pack_bits

UNNAMED = 0.4  # tall_lambda of a task that a map does not name


@method(
    family="masked",
    formula=r"\mathbb{1}\big[|\Delta_t| \ge \lambda_t |M - \Delta_t|\big] \odot M, "
    r"\quad M = \mathrm{inner}(\Delta_1, \ldots, \Delta_T)",
    involvement="VDI",
    paper="Wang et al., ICML 2024, arXiv:2405.07813",
    law="with one task it is exact; lambda 0 gives every task the whole merge",
    ours=("tall_lambda", "density"),
    searched={"tall_lambda": spaced(0.2, 0.6, 0.1)},
    own=("tall_lambda",),
    copies=6,
)
def tall_mask(
    layers: LayerSource,
    *,
    inner: Combine = "task_arithmetic",
    density: Densities = 0.2,
    tall_lambda: Thresholds = UNNAMED,
) -> Callable[[LayerDeltas], Parts]:
    """Merge by `inner`, unscaled, and mask that for each task: the entries in which the merge is mostly its own.

    A task's mask is set where its delta is at least `tall_lambda` times the rest of the merge: with task arithmetic
    the sum of the other tasks. `tall_lambda` is a number, or a map from tasks to numbers (0.4 for a task it does
    not name): the paper tunes it per task, from 0.2 to 0.6. `density` is what ties keeps of each whole vector; as
    in the paper's code, ties adds up the tasks that agree.
    """
    named = tall_lambda if isinstance(tall_lambda, Mapping) else dict.fromkeys(layers.tasks, tall_lambda)
    factors = torch.tensor([named.get(task, UNNAMED) for task in layers.tasks], dtype=torch.float64)
    inner_merge = unscaled_merge(layers, inner, density)

    def merge(layer: LayerDeltas) -> Parts:
        merged = inner_merge(layer)
        masks = tall_masks(layer.deltas, merged, factors).logical_and_(merged)
        own = zip(layer.tasks, masks, strict=True)
        parts = {task: Masked(pack_bits(mask), torch.ones(())) for task, mask in own if mask.any()}
        return Parts(parts, unified=merged.float())

    return merge
