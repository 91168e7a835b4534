"""TALL masks: one merged task vector, and for each task a mask of the entries that are its own."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, joined
from merganser.merging.method import NonNegative, PositiveFraction, method
from merganser.operators import inner as inner_merge
from merganser.operators import masks
from merganser.overlays.bits import pack_bits
from merganser.overlays.masked import Masked
from merganser.overlays.parts import Parts

Inner = Literal["task_arithmetic", "ties"]
UNNAMED = 0.4  # tall_lambda of a task that a map does not name


def survey(layers: LayerSource, *, inner: Inner, density: float, **_: Any) -> inner_merge.WholeVector:
    """Learn of all layers what the inner merge takes."""
    return inner_merge.survey(layers, inner, density=density)


@method(
    reads="deltas",
    family="masked",
    formula=r"\mathbb{1}\big[|\Delta_t| \ge \lambda_t |M - \Delta_t|\big] \odot M, "
    r"\quad M = \mathrm{inner}(\Delta_1, \ldots, \Delta_T)",
    involvement="VDI",
    efficiency="High",
    paper="Wang et al., ICML 2024, arXiv:2405.07813",
    cost="elementwise",
    ours=("tall_lambda", "density"),
    overlay=True,
    vectors="alike",
    prepare=survey,
)
def tall_mask(
    layer: LayerDeltas,
    *,
    inner: Inner = "task_arithmetic",
    density: PositiveFraction = 0.2,
    tall_lambda: NonNegative | dict[str, NonNegative] = UNNAMED,
) -> Parts:
    """Merge by `inner`, unscaled, and mask that for each task: the entries in which the merge is mostly its own.

    A task's mask is set where its delta is at least `tall_lambda` times what the merge has beside it: with task
    arithmetic what the other tasks add up to. `tall_lambda` is a number, or a map from tasks to numbers (0.4 for a task
    it does not name): the paper tunes it per task, from 0.2 to 0.6. `density` is what ties keeps of each whole vector.
    """
    named = tall_lambda if isinstance(tall_lambda, Mapping) else dict.fromkeys(layer.tasks, tall_lambda)
    factors = [named.get(task, UNNAMED) for task in layer.tasks]
    own = torch.tensor(factors, dtype=torch.float64, device=layer.deltas.device).unsqueeze(1)
    wanted = torch.empty(layer.deltas.shape, dtype=torch.bool, device=layer.deltas.device)

    def masked() -> Iterator[Tensor]:
        merged_blocks = inner_merge.merged_blocks(layer, layer.prepared)
        for block, merged, out in zip(blocks(layer.deltas), merged_blocks, blocks(wanted), strict=True):
            torch.logical_and(masks.tall_mask(block, merged, own), merged, out=out)
            yield merged

    unified = joined(masked(), layer.shape, torch.float32, layer.deltas.device)
    marked = zip(layer.tasks, wanted, strict=True)
    parts = {task: Masked(pack_bits(mask), torch.ones(())) for task, mask in marked if mask.any()}
    return Parts(parts, unified=unified)
