"""Localize-and-Stitch with data: put the entries of each task that were learned to matter into the base.

Every task is learned by the cross-entropy of its own model: the base and a sigmoid of a logit an entry times the delta.
Entries whose logit is above zero are kept, and shared among the tasks that keep them. Legend: T tasks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning import Form, Learner, Values, learned_by
from merganser.learning.settings import LabelledSettings
from merganser.linalg.cuts import kept
from merganser.merging.method import method
from merganser.operators.masks import stitch_masked
from merganser.operators.ties import vector_cut

SIZE = 5.0  # of the logits to begin with


class Settings(LabelledSettings):
    """The initial share of the whole vector, and the penalty for keeping all of it, added to the cross-entropy.

    The penalty multiplies the mean of the mask: it is the factor of its L1 norm times the number of entries.
    """

    apart: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=0)] = 100
    lr: Annotated[float, Field(gt=0)] = 0.1
    density: Annotated[float, Field(gt=0, le=1)] = 0.01
    penalty: Annotated[float, Field(ge=0)] = 1.0


@dataclass(frozen=True)
class Regions(Form):
    """The tasks' deltas under masks, averaged over the tasks that keep an entry; the values are logits (T, ...).

    A step's masks are soft, those that are checked and merged are not.
    """

    settings: Settings

    def start(self) -> Values:
        """Begin with what is kept without data: each task's largest entries."""
        cut = vector_cut(self.layers, self.settings.density)
        regions = self.layers.map(lambda layer: kept(layer.deltas, cut).cpu())
        return {name: torch.where(region, SIZE, -SIZE) for name, region in zip(self.layers.names, regions, strict=True)}

    def form(self, values: Values, step: int | None = None) -> Callable[[LayerDeltas], Tensor]:
        """Return the stitched delta of one layer."""
        return lambda layer: stitch_masked(layer.deltas, mask(values[layer.name], step).to(layer.deltas.device))

    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the derivative by each logit of a single task, whose soft mask multiplies its delta."""

        def by_logits(layer: LayerDeltas) -> Tensor:
            soft = mask(values[layer.name], 0)
            own = layer.deltas * gradients[layer.name].reshape(layer.deltas.shape)  # which refuses several tasks
            return own.to(soft.dtype).add_(self.settings.penalty / self.count).mul_(soft).mul_(1 - soft)

        return dict(zip(self.layers.names, self.layers.map(by_logits), strict=True))

    def penalty(self, values: Values, step: int | None) -> float:
        """Return what is added to the loss for what the masks keep."""
        kept = sum(float(mask(value, step).sum(dtype=torch.float64)) for value in values.values())
        return self.settings.penalty * kept / self.count


def mask(logits: Tensor, step: int | None) -> Tensor:
    """Return the soft mask of a step, or without one what is kept.

    >>> mask(torch.tensor([2.0, 0.0]), 0), mask(torch.tensor([2.0, 0.0]), None)
    (tensor([0.8808, 0.5000]), tensor([ True, False]))
    """
    return logits > 0 if step is None else torch.sigmoid(logits)


@method(
    family="learned",
    formula=r"\sum_t \frac{m_t}{\sum_j m_j} \odot \Delta_t, \quad m_t = \mathbb{1}[x_t > 0], \quad "
    r"x_t = \mathrm{argmin}_x \mathbb{E}_t\, \ell(W_0 + \sigma(x) \odot \Delta_t) + \lambda \lVert \sigma(x) \rVert_1",
    paper="He et al., TMLR 2025, arXiv:2408.13656",
    law="all regions everywhere give the average, only one task's its own model, none the base",
    involvement="VDI",
    learner=Learner(Settings, Regions),
)
def localize_stitch_learned(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Keep the entries of each task that its own model needs, and share what several tasks keep equally among them.

    The stage `learn` finds a logit per task and entry, from few labelled examples of each class: it starts at the
    regions of `localize_stitch`, and an L1 penalty keeps them small.
    """
    learned = learned_by(layers, "localize_stitch_learned")
    return Regions(layers, Settings(**learned.settings)).form(learned.values)
