import torch

from merganser.learning.adam import adam, no_moments


def test_steps_are_those_of_torchs_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    values = {"a": torch.randn(3, 2, generator=generator, dtype=torch.float64), "b": torch.zeros(())}
    theirs = {name: value.clone().requires_grad_() for name, value in values.items()}
    optimiser, moments = torch.optim.Adam(theirs.values(), lr=0.02), no_moments(values)
    for step in range(1, 8):
        gradients = {name: torch.randn(v.shape, generator=generator, dtype=v.dtype) for name, v in values.items()}
        for name, leaf in theirs.items():
            leaf.grad = gradients[name].clone()
        optimiser.step()
        values, moments = adam(values, gradients, moments, step, lr=0.02)
    for name, value in values.items():
        torch.testing.assert_close(value, theirs[name].detach())


def test_a_step_leaves_what_it_was_given() -> None:
    values = {"x": torch.ones(2)}
    moments = no_moments(values)
    adam(values, {"x": torch.ones(2)}, moments, 1, 0.1)
    assert values["x"].tolist() == [1, 1]
    assert moments.mean["x"].tolist() == moments.square["x"].tolist() == [0, 0]
