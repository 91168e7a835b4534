"""RegMean++: RegMean whose inputs of a block come through the merged blocks before it."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning import BlockLearner, learned_by
from merganser.learning.settings import BlockSettings
from merganser.merging.method import method
from merganser.methods.regmean import nearest_map, shrunk
from merganser.operators.vectors import scaled_mean


class Settings(BlockSettings):
    """The share of a Gram matrix's off-diagonal entries to keep, and how it is measured."""

    ratio: Annotated[float, Field(ge=0, le=1)] = 0.95


def merged_map(layer: LayerDeltas, settings: Settings) -> Tensor:
    """Return the map nearest to the tasks' own on the inputs that were measured."""
    turned = layer.statistics.side == "rows"
    merged = nearest_map(layer.deltas.mT if turned else layer.deltas, shrunk(layer.statistics["gram"], settings.ratio))
    return merged.mT if turned else merged


@method(
    family="statistics",
    formula=r"\Bigl(\sum_t \Delta_t \hat G_t\Bigr) \Bigl(\sum_t \hat G_t\Bigr)^{-1}, "
    r"\quad \hat G_t = a \, G_t + (1 - a) \operatorname{diag} G_t, "
    r"\quad G_t = \mathbb{E}_{x \sim t}\, h h^\top, \quad h = f_t\bigl(f_M^{(l-1)} \cdots f_M^{(1)}(x)\bigr)",
    paper="Nguyen et al., TMLR 2026, arXiv:2508.03121",
    law="a first block is RegMean's; equal models give that model",
    cost="linear system",
    efficiency="Medium",
    involvement="VDI",
    learner=BlockLearner(Settings, merge=merged_map),
)
def regmean_plus_plus(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Merge block after block by RegMean, on the inputs that the merged blocks before give.

    The stage `learn` takes each task's `examples` through the merged blocks before, f_M, and inside the block through
    the task's model, f_t. `ratio` is a, 0.95 in the authors' configuration for CLIP. A block holds the parameters whose
    names agree up to the first number (`encoder.layer.3`), in a network of stages a stage. A linear map outside all
    blocks is a block by itself. Blocks come in the order of a forward pass. Other parameters are averaged.

    The authors' code averages convolutions, and keeps the base's parameters behind the last block. It inverts the sum
    without a floor under its diagonal.
    """
    learned = learned_by(layers, "regmean_plus_plus")

    def merge(layer: LayerDeltas) -> Tensor:
        if layer.name in learned.values:
            return learned.values[layer.name].to(layer.deltas)
        return scaled_mean(layer)

    return merge
