"""WEMoE's routers and mixtures against plain float64, and their gradients against torch's."""

import pytest
import torch
from torch import Tensor

from merganser.operators.weight_ensembling import (
    BlockRouter,
    blend,
    first_router,
    mixture,
    router_tensors,
    routers_of,
)

TASKS, WIDTH, INNER = 3, 4, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def router() -> BlockRouter:
    return BlockRouter(drawn(WIDTH, WIDTH), drawn(WIDTH, seed=1), drawn(TASKS, WIDTH, seed=2), drawn(TASKS, seed=3))


def test_a_mixture_is_each_examples_own_sum_of_maps() -> None:
    rows, weights, vectors = drawn(2, 3, WIDTH), drawn(2, TASKS, seed=1), drawn(TASKS, INNER, WIDTH, seed=2)
    for example in range(2):
        own = sum(weights[example, task] * vectors[task] for task in range(TASKS))
        torch.testing.assert_close(mixture(rows, weights, vectors)[example], rows[example] @ own.T)


@pytest.mark.parametrize("at_once", [1, 2**24])
def test_the_gradient_of_a_mixture_is_torchs(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merganser.operators.weight_ensembling.AT_ONCE", at_once)
    rows, weights = drawn(2, 3, WIDTH).requires_grad_(), drawn(2, TASKS, seed=1).requires_grad_()
    vectors = drawn(TASKS, INNER, WIDTH, seed=2)
    assert torch.autograd.gradcheck(lambda x, w: mixture(x, w, vectors), (rows, weights))


def test_the_gradient_with_respect_to_a_router_is_that_of_formed_weights() -> None:
    """Compare with an MLP whose weights are formed for each example."""
    rows, counted = drawn(2, 3, WIDTH, seed=4), torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    vectors = {"m.weight": drawn(TASKS, INNER, WIDTH, seed=5), "m.bias": drawn(TASKS, INNER, seed=6)}
    ours = [x.clone().requires_grad_() for x in router()]
    theirs = [x.clone().requires_grad_() for x in router()]
    found = blend({"b": BlockRouter(*ours)}, vectors)("b", rows, counted)("m.weight", rows)
    assert found is not None
    expected = []
    for example, tokens in ((0, [0, 1, 2]), (1, [0, 2])):
        each = torch.relu(rows[example, tokens] @ theirs[0].T + theirs[1]) @ theirs[2].T + theirs[3]
        weights = each.mean(dim=0)
        formed, bias = (torch.tensordot(weights, vectors[name], 1) for name in ("m.weight", "m.bias"))
        expected.append(rows[example] @ formed.T + bias)
    torch.testing.assert_close(found, torch.stack(expected))
    found.sin().sum().backward()
    torch.stack(expected).sin().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_before_the_first_step_every_example_takes_exactly_the_scaling() -> None:
    first = first_router(6, TASKS, 0.3, seed=0, block="a")
    weights = first.weights(torch.randn(5, 7, 6), torch.ones(5, 7))
    assert torch.equal(weights, torch.full((5, TASKS), 0.3))
    assert 0 < first.hidden.std() < 0.02
    assert not torch.equal(first.hidden, first_router(6, TASKS, 0.3, seed=0, block="b").hidden)


def test_routers_are_gathered_by_their_blocks() -> None:
    tensors = router_tensors("x/y.0", router()) | router_tensors("x/y.1", router())
    found = routers_of(tensors)
    assert list(found) == ["x/y.0", "x/y.1"]
    assert all(map(torch.equal, found["x/y.1"], router()))
