"""One step of Adam (Kingma and Ba, ICLR 2015), as a pure function."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from merganser.learning import Values

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """The running means of the gradients and of their squares, and how often each value was moved."""

    mean: Values
    square: Values
    moves: Mapping[str, int]


def no_moments(values: Values) -> Moments:
    """Return the moments before the first step."""
    mean, square = ({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2))
    return Moments(mean, square, dict.fromkeys(values, 0))


def adam(values: Values, gradients: Values, moments: Moments, lr: float) -> tuple[Values, Moments]:
    """Return the values and moments after a step; what has no gradient stays as it was.

    >>> start = {"x": torch.tensor([1.0])}
    >>> adam(start, {"x": torch.tensor([-5.0])}, no_moments(start), 0.1)[0]["x"]
    tensor([1.1000])
    """
    first, second = BETAS
    changed, mean, square = dict(values), dict(moments.mean), dict(moments.square)
    moves = {name: count + (name in gradients) for name, count in moments.moves.items()}
    for name, gradient in gradients.items():
        mean[name] = moments.mean[name].lerp(gradient, 1 - first)
        square[name] = moments.square[name].mul(second).addcmul_(gradient, gradient, value=1 - second)
        size = square[name].div(1 - second ** moves[name]).sqrt_().add_(EPSILON)
        changed[name] = values[name].addcdiv(mean[name], size, value=-lr / (1 - first ** moves[name]))
    return changed, Moments(mean, square, moves)
