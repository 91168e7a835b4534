"""AdaMerging's laws in float64, against torch's own gradients of a plain implementation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.methods.adamerging import COEFFICIENTS, Settings, WeightedSum, weighted_sum
from tests.laws.layers import Layers
from tests.laws.samples import network
from tests.learning.derivatives import as_function, pulled, smooth_loss

TASKS = 3


def layers() -> Layers:
    return Layers([replace(layer, deltas=layer.deltas.double()) for layer in network(TASKS)])


def bound(**settings: Any) -> WeightedSum:
    return weighted_sum(layers(), Settings(**settings), 0)


def plain_agreeing(deltas: list[Tensor], density: float) -> list[Tensor]:
    """Trim the tasks' whole vectors, and zero what has not the sign of the sum."""
    flat = torch.stack([torch.cat([layer[t].reshape(-1) for layer in deltas]) for t in range(TASKS)])
    count = int(density * flat.shape[1] + 1e-9)
    kept = torch.zeros_like(flat).scatter(1, flat.abs().topk(count).indices, 1.0) * flat
    sign = kept.sum(0).sign()
    sign[sign == 0] = 1.0 if sign.sum() >= 0 else -1.0
    agreeing = (kept * (kept * sign > 0)).split([layer[0].numel() for layer in deltas], dim=1)
    return [part.reshape(layer.shape) for part, layer in zip(agreeing, deltas, strict=True)]


CASES: list[dict[str, Any]] = [
    {"granularity": "layer"},
    {"granularity": "task"},
    {"plus_plus": True},
    {"plus_plus": True, "granularity": "task", "density": 0.5},
]
every_case = pytest.mark.parametrize("settings", CASES)


def plain(settings: dict[str, Any]) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return the merged deltas as a plain function of the coefficients."""
    deltas = [layer.deltas for layer in layers().layers if isinstance(layer, LayerDeltas)]
    if settings.get("plus_plus"):
        deltas = plain_agreeing(deltas, settings.get("density", 0.2))

    def merged(coefficients: Tensor) -> dict[str, Tensor]:
        rows = coefficients.expand(len(deltas), TASKS)
        return {
            name: torch.einsum("t,t...->...", row, delta)
            for name, row, delta in zip(layers().names, rows, deltas, strict=True)
        }

    return merged


def drawn(form: WeightedSum) -> Tensor:
    shape = form.start()[COEFFICIENTS].shape
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@every_case
def test_the_merged_deltas_are_the_weighted_sums_of_the_prepared_ones(settings: dict[str, Any]) -> None:
    form = bound(**settings)
    for coefficients in (form.start()[COEFFICIENTS], drawn(form)):
        found = map(form.form({COEFFICIENTS: coefficients}), form.layers)
        for (name, expected), merged in zip(plain(settings)(coefficients).items(), found, strict=True):
            torch.testing.assert_close(merged, expected, msg=name)
    assert torch.all(form.start()[COEFFICIENTS] == 0.3)


@every_case
def test_the_gradient_is_torchs_own_of_the_plain_function(settings: dict[str, Any]) -> None:
    form = bound(**settings)
    leaf = drawn(form).requires_grad_()
    merged = plain(settings)(leaf)
    expected = torch.autograd.grad(smooth_loss(merged), leaf, retain_graph=True)[0]
    found = pulled(form, {COEFFICIENTS: leaf.detach()}, merged)[COEFFICIENTS]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@every_case
def test_form_and_pull_are_a_function_and_its_derivative(settings: dict[str, Any]) -> None:
    form = bound(**settings)
    formed = as_function(form, form.layers, [COEFFICIENTS], {})
    assert torch.autograd.gradcheck(formed, drawn(form).requires_grad_(), fast_mode=True)


def test_the_gradient_by_task_is_the_sum_of_those_by_layer() -> None:
    gradients = {layer.name: layer.deltas.sum(0).cos() for layer in layers() if isinstance(layer, LayerDeltas)}
    by_layer, by_task = (bound(granularity=granularity) for granularity in ("layer", "task"))
    many = by_layer.pull(by_layer.start(), 0, gradients)[COEFFICIENTS]
    torch.testing.assert_close(by_task.pull(by_task.start(), 0, gradients)[COEFFICIENTS], many.sum(0, keepdim=True))
