import pytest
import torch
from torch import Tensor

from merganser.linalg.descent import adam, momentum

CURVATURE = torch.tensor([[3.0, 1.0], [1.0, 0.5]], dtype=torch.float64)
TARGET = torch.tensor([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]], dtype=torch.float64)
START = torch.tensor([[0.1, 0.2], [-0.3, 0.0], [0.0, 0.4]], dtype=torch.float64)


def gradient(point: Tensor) -> Tensor:
    return 2 * (point @ CURVATURE - TARGET)


def by_torch(kind: type[torch.optim.Optimizer], steps: int, **settings: float) -> Tensor:
    """Take an optimiser's steps on the function that has this gradient."""
    point = START.clone().requires_grad_()
    optimiser = kind([point], **settings)  # type: ignore[call-arg]
    for _ in range(steps):
        point.grad = gradient(point.detach())
        optimiser.step()
    return point.detach()


@pytest.mark.parametrize("steps", [0, 1, 2, 50])
def test_steps_of_adam_are_torchs(steps: int) -> None:
    expected = by_torch(torch.optim.Adam, steps, lr=0.01)
    torch.testing.assert_close(adam(START, gradient, steps, 0.01), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [0, 1, 2, 50])
def test_steps_with_momentum_are_torchs(steps: int) -> None:
    expected = by_torch(torch.optim.SGD, steps, lr=0.01, momentum=0.9)
    torch.testing.assert_close(momentum(START, gradient, steps, 0.01, 0.9), expected, rtol=1e-12, atol=1e-14)


def test_the_start_stays_as_it_was() -> None:
    before = START.clone()
    adam(START, gradient, 3, 0.1)
    momentum(START, gradient, 3, 0.1, 0.9)
    assert torch.equal(START, before)
