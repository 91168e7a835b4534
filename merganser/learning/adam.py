"""One step of Adam (Kingma and Ba, ICLR 2015), as a pure function."""

from dataclasses import dataclass

import torch

from merganser.learning import Values

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """The running means of the gradients and of their squares."""

    mean: Values
    square: Values


def no_moments(values: Values) -> Moments:
    """Return the moments before the first step."""
    return Moments(*({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2)))


def adam(values: Values, gradients: Values, moments: Moments, step: int, lr: float) -> tuple[Values, Moments]:
    """Return the values and moments after a step; steps are counted from 1 on.

    >>> start = {"x": torch.tensor([1.0])}
    >>> adam(start, {"x": torch.tensor([-5.0])}, no_moments(start), 1, 0.1)[0]["x"]
    tensor([1.1000])
    """
    first, second = BETAS
    changed, mean, square = Values(), Values(), Values()
    for name, value in values.items():
        gradient = gradients[name]
        mean[name] = moments.mean[name].lerp(gradient, 1 - first)
        square[name] = moments.square[name].mul(second).addcmul_(gradient, gradient, value=1 - second)
        size = square[name].div(1 - second**step).sqrt_().add_(EPSILON)
        changed[name] = value.addcdiv(mean[name], size, value=-lr / (1 - first**step))
    return changed, Moments(mean, square)
