"""AdaRank's laws in float64, against torch's own gradients of a plain straight-through implementation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors
from merganser.learning import Values
from merganser.linalg.decompositions import Factors
from merganser.methods.adarank import COEFFICIENTS, KeptComponents, Settings
from tests.laws.layers import Layers, factored
from tests.laws.samples import network
from tests.learning.derivatives import as_function, pulled, smooth_loss

TASKS = 3
DENSE = [replace(layer, deltas=layer.deltas.double()) for layer in network(TASKS)]
READ: list[Layer] = [factored(list(x.deltas), x.name) if x.kind == "matrix" else x for x in DENSE]
LAYERS = Layers(READ)


def bound(layers: Layers = LAYERS, **settings: Any) -> KeptComponents:
    return KeptComponents(layers, Settings(**settings))


def drawn() -> Values:
    """Draw choices of both signs, and coefficients."""
    generator = torch.Generator().manual_seed(0)
    start = bound().start()
    found = {n: torch.randn(v.shape, generator=generator, dtype=torch.float64) for n, v in start.items()}
    return found | {COEFFICIENTS: found[COEFFICIENTS].abs() + 0.1}


def plain(values: Values) -> dict[str, Tensor]:
    """Merge with a step forward, and a sigmoid's derivative backward."""
    merged = {}
    for row, layer in zip(values[COEFFICIENTS], READ, strict=True):
        if isinstance(layer, LayerDeltas):
            merged[layer.name] = torch.einsum("t,t...->...", row, layer.deltas)
            continue
        assert isinstance(layer, LayerFactors)
        soft = torch.sigmoid(values[layer.name] / 10)
        kept = (values[layer.name] > 0) + soft - soft.detach()
        parts = zip(row, kept, layer.factors, strict=True)
        merged[layer.name] = sum((c * (f.u * (f.s * b)) @ f.vh for c, b, f in parts), torch.zeros(layer.shape))
    return merged


def same(form: KeptComponents, values: Values, expected: dict[str, Tensor], layers: Layers = LAYERS) -> None:
    for found, wanted in zip(map(form.form(values), layers), expected.values(), strict=True):
        torch.testing.assert_close(found, wanted.double())


def test_all_kept_at_first_is_task_arithmetic() -> None:
    same(bound(), bound().start(), {layer.name: 0.3 * layer.deltas.sum(0) for layer in DENSE})


def test_some_kept_at_first_is_the_sum_of_truncated_deltas() -> None:
    expected = {}
    for layer in READ:
        if isinstance(layer, LayerFactors):
            k = max(1, min(layer.shape) // 2)
            expected[layer.name] = sum((f.u[:, :k] * f.s[:k]) @ f.vh[:k] for f in layer.factors)
        else:
            assert isinstance(layer, LayerDeltas)
            expected[layer.name] = layer.deltas.sum(0)
    form = bound(rank_fraction=0.5, scaling=1.0)
    same(form, form.start(), expected)


def test_any_choice_is_the_sum_of_what_is_kept() -> None:
    same(bound(), drawn(), plain(drawn()))


def test_the_gradients_are_torchs_own_of_the_straight_through_function() -> None:
    leaves = {name: value.requires_grad_() for name, value in drawn().items()}
    merged = plain(leaves)
    expected = dict(
        zip(leaves, torch.autograd.grad(smooth_loss(merged), list(leaves.values()), retain_graph=True), strict=True)
    )
    found = pulled(bound(), {name: leaf.detach() for name, leaf in leaves.items()}, merged)
    for name, pull in found.items():
        torch.testing.assert_close(pull, expected[name], rtol=1e-9, atol=1e-12, msg=name)
        assert pull.abs().max() > 0, name


def test_the_coefficients_are_a_function_with_this_derivative() -> None:
    formed = as_function(bound(), LAYERS, [COEFFICIENTS], drawn())
    assert torch.autograd.gradcheck(formed, drawn()[COEFFICIENTS].requires_grad_(), fast_mode=True)


def test_the_signs_of_singular_vectors_change_nothing() -> None:
    def flipped(layer: Layer) -> Layer:
        if not isinstance(layer, LayerFactors):
            return layer
        signs = [torch.tensor([1.0, -1.0]).repeat(len(f.s))[: len(f.s)].double() for f in layer.factors]
        turned = (Factors(f.u * s, f.s, f.vh * s[:, None]) for f, s in zip(layer.factors, signs, strict=True))
        return replace(layer, factors=tuple(turned))

    turned, gradients = Layers([flipped(layer) for layer in READ]), {x.name: x.deltas.sum(0).cos() for x in DENSE}
    same(bound(turned), drawn(), plain(drawn()), turned)
    for name, found in bound(turned).pull(drawn(), 0, gradients).items():
        torch.testing.assert_close(found, bound().pull(drawn(), 0, gradients)[name])


def test_factors_without_all_their_vectors_are_refused() -> None:
    cut = Layers([factored(list(x.deltas), x.name, rank=2) for x in DENSE if x.kind == "matrix"])
    with pytest.raises(InputError, match=r"square has 2 singular vectors of 6, and all are needed; set decompose"):
        bound(cut).start()
