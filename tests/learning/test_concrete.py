"""Concrete's laws in float64, against torch's own distribution and gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import RelaxedBernoulli

from merganser.inputs.layers import LayerDeltas
from merganser.learning import Values
from merganser.methods.concrete import COEFFICIENTS, MaskedSum, Settings, relaxed
from merganser.operators.drop import generator_of
from tests.laws.layers import Layers
from tests.laws.samples import network
from tests.learning.derivatives import STEP, as_function, pulled, smooth_loss

SEED, TEMPERATURE = 7, 0.5
LAYERS = Layers([replace(layer, deltas=layer.deltas.double()) for layer in network(2)])
SUMS = {layer.name: 0.3 * layer.deltas.sum(0) for layer in LAYERS.layers if isinstance(layer, LayerDeltas)}
COUNT = sum(total.numel() for total in SUMS.values())


@pytest.fixture
def form() -> MaskedSum:
    return MaskedSum(LAYERS, Settings(), SEED)


def drawn() -> Values:
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in LAYERS.shapes.items()}


def masks(values: Values) -> Values:
    """Draw the masks of one step by the formula."""
    found = {}
    for name, logits in values.items():
        u = torch.rand(logits.shape, generator=generator_of(SEED, str(STEP), name)).double()
        found[name] = torch.sigmoid((logits + u.log() - torch.log1p(-u)) / TEMPERATURE)
    return found


def plain(values: Values) -> dict[str, Tensor]:
    """Merge by the formula with the noise of one step."""
    drawn = masks(values)
    mean = torch.cat([mask.reshape(-1) for mask in drawn.values()]).mean()
    return {name: total * drawn[name] / mean for name, total in SUMS.items()}


def test_a_mask_is_torchs_relaxed_bernoulli_of_the_same_numbers() -> None:
    logits = torch.linspace(-4, 4, 50, dtype=torch.float64)
    torch.manual_seed(3)
    uniform = torch.rand(50, dtype=torch.float64)
    torch.manual_seed(3)
    expected = RelaxedBernoulli(torch.tensor(TEMPERATURE, dtype=torch.float64), logits=logits).rsample()
    torch.testing.assert_close(relaxed(logits, uniform, TEMPERATURE), expected)


def test_noise_at_its_ends_is_finite() -> None:
    assert relaxed(torch.zeros(2), torch.tensor([0.0, 1.0]), TEMPERATURE).isfinite().all()


@pytest.mark.parametrize("logit", [-3.0, 0.0, 1.5])
def test_constant_logits_are_task_arithmetic(logit: float, form: MaskedSum) -> None:
    merged = map(form.form({name: torch.full(shape, logit) for name, shape in LAYERS.shapes.items()}), LAYERS)
    for found, expected in zip(merged, SUMS.values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_the_rescaled_mask_has_the_mean_one_over_the_whole_vector(form: MaskedSum) -> None:
    merged = dict(zip(SUMS, map(form.form(drawn(), STEP), LAYERS), strict=True))
    rescaled = torch.cat([(merged[name] / total).reshape(-1) for name, total in SUMS.items()])
    assert rescaled.mean().item() == pytest.approx(1)
    assert rescaled.std() > 0.1


def test_a_step_merges_by_the_formula_and_the_result_without_noise(form: MaskedSum) -> None:
    values = drawn()
    for found, expected in zip(map(form.form(values, STEP), LAYERS), plain(values).values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)
    quiet = {name: torch.sigmoid(logits / TEMPERATURE) for name, logits in values.items()}
    mean = sum(mask.sum() for mask in quiet.values()) / COUNT
    for found, (name, total) in zip(map(form.form(values), LAYERS), SUMS.items(), strict=True):
        torch.testing.assert_close(found, total * quiet[name] / mean)


def test_the_gradient_is_torchs_own_of_the_formula(form: MaskedSum) -> None:
    leaves = {name: logits.requires_grad_() for name, logits in drawn().items()}
    merged = plain(leaves)
    expected = torch.autograd.grad(smooth_loss(merged), list(leaves.values()), retain_graph=True)
    found = pulled(form, {name: leaf.detach() for name, leaf in leaves.items()}, merged)
    for (name, pull), wanted in zip(found.items(), expected, strict=True):
        torch.testing.assert_close(pull, wanted, rtol=1e-5, atol=1e-9, msg=name)


def test_form_and_pull_are_a_function_and_its_derivative(form: MaskedSum) -> None:
    names = ["bias", "scalar", "positions"]
    formed = as_function(form, LAYERS, names, drawn())
    assert torch.autograd.gradcheck(formed, [drawn()[name].requires_grad_() for name in names])


def test_the_derivative_by_an_entry_of_the_mask_is_its_own_and_that_of_the_mean(form: MaskedSum) -> None:
    values, mask = drawn(), masks(drawn())
    gradients = {name: total.cos() for name, total in SUMS.items()}
    mean = float(sum(each.sum() for each in mask.values())) / COUNT
    through = float(sum((gradients[n] * mask[n] * SUMS[n]).sum() for n in SUMS)) / (COUNT * mean**2)
    for name, found in form.pull(values, STEP, gradients).items():
        slope = mask[name] * (1 - mask[name]) / TEMPERATURE
        torch.testing.assert_close(found, slope * (gradients[name] * SUMS[name] / mean - through), rtol=1e-5, atol=1e-9)


def coefficients() -> Tensor:
    return torch.rand(len(SUMS), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def inside(values: Values, noise: bool) -> dict[str, Tensor]:
    """Merge by the formula with coefficients."""
    logits = {name: value for name, value in values.items() if name != COEFFICIENTS}
    quiet = {name: torch.sigmoid(value / TEMPERATURE) for name, value in logits.items()}
    drawn = masks(logits) if noise else quiet
    mean = torch.cat([mask.reshape(-1) for mask in drawn.values()]).mean()
    deltas = [layer.deltas for layer in LAYERS.layers if isinstance(layer, LayerDeltas)]
    sums = [torch.einsum("t,t...->...", row, each) for row, each in zip(values[COEFFICIENTS], deltas, strict=True)]
    return {name: total * drawn[name] / mean for name, total in zip(SUMS, sums, strict=True)}


@pytest.mark.parametrize("mask_steps", [STEP, STEP + 1])
def test_with_adamerging_inside_a_step_moves_the_mask_or_the_coefficients(mask_steps: int) -> None:
    form = MaskedSum(LAYERS, Settings(inner="adamerging", mask_steps=mask_steps), SEED)
    leaves = {name: value.requires_grad_() for name, value in (drawn() | {COEFFICIENTS: coefficients()}).items()}
    masking = mask_steps > STEP
    merged = inside(leaves, masking)
    values = {name: leaf.detach() for name, leaf in leaves.items()}
    for found, expected in zip(map(form.form(values, STEP), LAYERS), merged.values(), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-12)
    moved = list(SUMS) if masking else [COEFFICIENTS]
    expected = torch.autograd.grad(smooth_loss(merged), [leaves[name] for name in moved], retain_graph=True)
    found = pulled(form, values, merged)
    assert list(found) == moved
    for name, wanted in zip(moved, expected, strict=True):
        torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-9, msg=name)


def test_the_mask_is_learned_for_coefficients_one_step_of_gradient_descent_ahead() -> None:
    form = MaskedSum(LAYERS, Settings(inner="adamerging", lr=0.01), SEED)
    values = drawn() | {COEFFICIENTS: coefficients().requires_grad_()}
    merged = inside(values, noise=True)
    slope = torch.autograd.grad(smooth_loss(merged), values[COEFFICIENTS], retain_graph=True)[0]
    gradients = torch.autograd.grad(smooth_loss(merged), list(merged.values()))
    values = {name: value.detach() for name, value in values.items()}
    ahead = form.ahead(values, STEP, dict(zip(merged, gradients, strict=True)))
    assert ahead is not None
    torch.testing.assert_close(ahead[COEFFICIENTS], values[COEFFICIENTS] - 0.01 * slope)
    assert all(ahead[name] is values[name] for name in SUMS)
    assert form.ahead(values, 1000, {}) is None
    assert MaskedSum(LAYERS, Settings(), SEED).ahead(drawn(), STEP, {}) is None


def test_noise_is_of_the_step_the_seed_and_the_parameter(form: MaskedSum) -> None:
    values = {name: torch.zeros(8, 8) for name in ("a", "b")}
    first = form.mask(values, "a", 1)
    assert torch.equal(first, form.mask(values, "a", 1))
    other = MaskedSum(LAYERS, Settings(), SEED + 1)
    for changed in (form.mask(values, "a", 2), form.mask(values, "b", 1), other.mask(values, "a", 1)):
        assert not torch.equal(first, changed)
