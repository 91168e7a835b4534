"""Concrete task arithmetic and Concrete AdaMerging: task vectors under one soft mask, an entry a learned logit.

The mask is divided by its mean over the whole vector, so that masking alone changes no size. While it is learned,
logistic noise moves it; the merge has none. With AdaMerging inside, the mask is learned first, for coefficients one
step ahead of the first ones, and the coefficients after that. Legend: T tasks, L parameters, n entries of the whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning import Form, Learner, Values, learned_by
from merganser.learning.settings import LearnerSettings
from merganser.merging.method import method
from merganser.operators.drop import generator_of
from merganser.operators.sums import inner_products_with_gradient, scaled_sum

COEFFICIENTS = "coefficients"
EPSILON = torch.finfo(torch.float32).eps  # what keeps the noise finite


class Settings(LearnerSettings):
    """What is masked, the factor on each delta (where coefficients start), and how soft the mask is.

    `mask_steps`: with AdaMerging inside, the steps after which coefficients are learned instead of the mask.
    """

    steps: Annotated[int, Field(ge=0)] = 2000
    inner: Literal["task_arithmetic", "adamerging"] = "task_arithmetic"
    mask_steps: Annotated[int, Field(ge=0)] = 1000
    scaling: float = 0.3
    temperature: Annotated[float, Field(gt=0)] = 0.5


@dataclass(frozen=True)
class MaskedSum(Form):
    """The weighted sum of the tasks' deltas times the mask over its mean.

    The values are the logits, by layer, and the coefficients (L, T), with AdaMerging inside.
    """

    settings: Settings
    # By layer, the latest mask with what it was of: a step needs each one several times.
    _masks: dict[str, tuple[int | None, Tensor, Tensor]] = field(default_factory=dict)
    _totals: dict[str, tuple[Tensor | None, Tensor]] = field(default_factory=dict)  # and the sum, with its coefficients

    def start(self) -> Values:
        """Give every entry the same logit, and every delta the same coefficient."""
        logits = {name: torch.zeros(shape) for name, shape in self.layers.shapes.items()}
        if self.settings.inner == "task_arithmetic":
            return logits
        shape = len(self.layers.names), len(self.layers.tasks)
        return logits | {COEFFICIENTS: torch.full(shape, self.settings.scaling, dtype=torch.float64)}

    def form(self, values: Values, step: int | None = None) -> Callable[[LayerDeltas], Tensor]:
        """Return the masked sum of one layer's deltas."""
        mean = self.mean(values, step)

        def merged(layer: LayerDeltas) -> Tensor:
            total = self.total(values, layer)
            return total * (self.mask(values, layer.name, step) / mean).to(total.device, total.dtype)

        return merged

    def pull(self, values: Values, step: int | None, gradients: Mapping[str, Tensor]) -> Values:
        """Return the derivative by the coefficients, or by the logits while the mask is learned."""
        mean = self.mean(values, step)
        if not self.learns_mask(step):
            return {COEFFICIENTS: self.by_coefficients(values, step, gradients, mean)}
        return self.by_logits(values, step, gradients, mean)

    def ahead(self, values: Values, step: int, gradients: Mapping[str, Tensor]) -> Values | None:
        """Take one step of gradient descent in the coefficients, while the mask is learned for them."""
        if self.passes(step) == 1:
            return None
        slope = self.by_coefficients(values, step, gradients, self.mean(values, step))
        return values | {COEFFICIENTS: values[COEFFICIENTS] - self.settings.lr * slope}

    def passes(self, step: int) -> int:
        """Count two passes while the mask is learned for coefficients one step ahead."""
        return 2 if self.settings.inner == "adamerging" and self.learns_mask(step) else 1

    def learns_mask(self, step: int | None) -> bool:
        """Tell whether a step moves the mask."""
        return self.settings.inner == "task_arithmetic" or (step is not None and step < self.settings.mask_steps)

    def by_coefficients(self, values: Values, step: int | None, gradients: Mapping[str, Tensor], mean: float) -> Tensor:
        """Return the inner products of a layer's masked gradient and deltas (L, T)."""

        def products(layer: LayerDeltas) -> Tensor:
            mask = self.mask(values, layer.name, step).to(layer.dtype)
            return inner_products_with_gradient(layer.deltas, gradients[layer.name].reshape(layer.shape) * mask) / mean

        return torch.stack(list(self.layers.map(products)))

    def by_logits(self, values: Values, step: int | None, gradients: Mapping[str, Tensor], mean: float) -> Values:
        """Return the derivative by each logit: of its own entry, and of the mean that all entries are divided by."""

        def own(layer: LayerDeltas) -> tuple[Tensor, float]:
            product = gradients[layer.name].reshape(layer.shape) * self.total(values, layer)
            mask = self.mask(values, layer.name, step)
            return product.to(mask.dtype) / mean, float((product.double() * mask).sum())

        pieces, sums = zip(*self.layers.map(own), strict=True)
        through_mean = sum(sums) / (self.count * mean**2)
        pulled = Values()
        for name, piece in zip(self.layers.names, pieces, strict=True):
            mask = self.mask(values, name, step)
            pulled[name] = piece.sub_(through_mean).mul_(mask).mul_(1 - mask).div_(self.settings.temperature)
        return pulled

    def total(self, values: Values, layer: LayerDeltas) -> Tensor:
        """Return the weighted sum of a layer's deltas."""
        coefficients = values.get(COEFFICIENTS)
        if layer.name in self._totals:
            of, total = self._totals[layer.name]
            if of is coefficients:
                return total
        if coefficients is None:
            total = scaled_sum(layer.deltas, self.settings.scaling)
        else:
            total = scaled_sum(layer.deltas, 1, coefficients[self.layers.names.index(layer.name)].tolist())
        self._totals[layer.name] = coefficients, total
        return total

    def mean(self, values: Values, step: int | None) -> float:
        """Return the mean of the mask over the whole vector."""
        masks = (self.mask(values, name, step) for name in self.layers.names)
        return sum(float(mask.sum(dtype=torch.float64)) for mask in masks) / self.count

    def mask(self, values: Values, name: str, step: int | None) -> Tensor:
        """Return the mask of one layer with the noise of a step that learns it."""
        logits, drawn = values[name], step if self.learns_mask(step) else None
        if name in self._masks:
            of, by, mask = self._masks[name]
            if of == drawn and by is logits:
                return mask
        if drawn is None:
            mask = torch.sigmoid(logits / self.settings.temperature)
        else:
            uniform = torch.rand(logits.shape, generator=generator_of(self.seed, str(drawn), name))
            mask = relaxed(logits, uniform, self.settings.temperature)
        self._masks[name] = drawn, logits, mask
        return mask


def relaxed(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Draw from a relaxed Bernoulli distribution by uniform numbers.

    >>> relaxed(torch.tensor([0.0, 2.0]), torch.tensor([0.5, 0.5]), 1.0)
    tensor([0.5000, 0.8808])
    """
    noise = uniform.clamp(EPSILON, 1 - EPSILON).logit()
    return torch.sigmoid((logits + noise.to(logits.dtype)) / temperature)


@method(
    family="learned",
    formula=r"\frac{m}{\bar m} \odot \sum_t \lambda_{t,l} \Delta_{t,l}, \quad m = \sigma(x / \tau)",
    paper="Tang et al., 2023, arXiv:2312.06173",
    law="with equal logits, as before the first step, it is the method inside",
    involvement="TTA",
    learner=Learner(Settings, MaskedSum),
)
def concrete(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Mask the sum of the tasks' deltas, entry by entry, by the subspace in which predictions are surest.

    The stage `learn` finds a logit per entry; the mask is divided by its mean over the whole vector. With
    `inner: adamerging` it then finds a coefficient per task and parameter; otherwise all of them are `scaling`.
    """
    learned = learned_by(layers, "concrete")
    return MaskedSum(layers, Settings(**learned.settings)).form(learned.values)
