"""What the learners' laws share: a smooth loss of merged weights, and a learner's form as a function of torch's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from merganser.inputs.layers import LayerSource
from merganser.learning import Form, Values

STEP = 5


def smooth_loss(weights: Mapping[str, Tensor]) -> Tensor:
    """Compute something smooth that depends on every weight, and on all together."""
    flat = torch.cat([100 * weight.reshape(-1) for weight in weights.values()])
    return (flat.sin() * torch.linspace(-1, 1, len(flat), dtype=torch.float64)).sum() * flat.tanh().mean()


def pulled(form: Form, values: Values, merged: Mapping[str, Tensor]) -> Values:
    """Pull the loss's gradient with respect to merged deltas back to the values."""
    gradients = torch.autograd.grad(smooth_loss(merged), list(merged.values()), retain_graph=True)
    return form.pull(values, STEP, dict(zip(merged, gradients, strict=True)))


def as_function(form: Form, layers: LayerSource, names: Sequence[str], fixed: Values) -> Callable[..., Any]:
    """Return a form as a function of some of its values that torch can check the derivative of."""

    class Formed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> Any:
            ctx.save_for_backward(*given)
            values = fixed | dict(zip(names, (each.detach() for each in given), strict=True))
            return tuple(map(form.form(values, STEP), layers))

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            values = fixed | dict(zip(names, ctx.saved_tensors, strict=True))
            found = form.pull(values, STEP, dict(zip(layers.names, gradients, strict=True)))
            return tuple(found[name] for name in names)

    apply: Callable[..., Any] = Formed.apply
    return apply
