import pytest
import torch

from merganser.errors import InputError
from merganser.learning.loop import adam, no_moments


def test_steps_are_those_of_torchs_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    values = {"a": torch.randn(3, 2, generator=generator, dtype=torch.float64), "b": torch.zeros(())}
    theirs = {name: value.clone().requires_grad_() for name, value in values.items()}
    optimiser, moments = torch.optim.Adam(theirs.values(), lr=0.02), no_moments(values)
    for _ in range(7):
        gradients = {name: torch.randn(v.shape, generator=generator, dtype=v.dtype) for name, v in values.items()}
        for name, leaf in theirs.items():
            leaf.grad = gradients[name].clone()
        optimiser.step()
        values, moments = adam(values, gradients, moments, lr=0.02)
    for name, value in values.items():
        torch.testing.assert_close(value, theirs[name].detach())


def test_a_step_leaves_what_it_was_given() -> None:
    values = {"x": torch.ones(2)}
    moments = no_moments(values)
    adam(values, {"x": torch.ones(2)}, moments, 0.1)
    assert values["x"].tolist() == [1, 1]
    assert moments.mean["x"].tolist() == moments.square["x"].tolist() == [0, 0]


def test_what_has_no_gradient_stays_and_starts_afresh_when_it_has() -> None:
    values = {"first": torch.zeros(1), "second": torch.zeros(1)}
    moments = no_moments(values)
    for _ in range(3):
        values, moments = adam(values, {"first": torch.ones(1)}, moments, 0.1)
    assert values["second"].tolist() == [0]
    values, moments = adam(values, {"second": torch.ones(1)}, moments, 0.1)
    assert values["first"].item() == pytest.approx(-0.3)
    assert values["second"].item() == pytest.approx(-0.1)


@pytest.mark.parametrize(
    "gradients",
    [{"x": torch.ones(1)}, {"x": torch.ones(2, dtype=torch.float64)}, {"x": torch.ones(2), "y": torch.ones(2)}],
)
def test_a_gradient_of_other_values_is_refused_and_not_broadcast(gradients: dict[str, torch.Tensor]) -> None:
    values = {"x": torch.zeros(2)}
    with pytest.raises(
        InputError, match=r"^the learner's gradient of [xy] is .*, but its initial value is .*: correct"
    ):
        adam(values, gradients, no_moments(values), 0.1)
