from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser.overlays.parts import Masked, Parts
from tests.laws.layers import delta_of, merged
from tests.laws.references import Array, Given, flat, unflat
from tests.laws.samples import in_pieces, joined, network


def reference(layers: Sequence[Given], rescaler: str = "magnitude") -> list[Array]:
    """Elect, mask and rescale, over the whole vector."""
    tau = flat(layers)
    gamma = np.sign(tau.sum(0))
    agreeing = np.where(np.sign(tau) == gamma, np.abs(tau), 0)
    unified = gamma * agreeing.max(0)
    masked = (tau * unified > 0) * unified
    own, size = (np.abs(tau), np.abs(masked)) if rescaler == "magnitude" else (tau * masked, masked**2)
    sums = size.sum(1, keepdims=True)
    return unflat(own.sum(1, keepdims=True) / np.where(sums > 0, sums, 1) * masked, layers)


def whole_models(
    found: list[torch.Tensor | Parts], tasks: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> torch.Tensor:
    """Lay out each task's own vector: (T, n)."""
    parts = [p for p in found if isinstance(p, Parts)]
    return torch.stack(
        [torch.cat([delta_of(p, t, s).flatten() for p, s in zip(parts, shapes, strict=True)]) for t in tasks]
    )


def test_with_one_task_emr_is_exact() -> None:
    layers = network(1)
    shapes = [tuple(layer.deltas.shape[1:]) for layer in layers]
    assert torch.equal(whole_models(merged("emr", *layers), layers[0].tasks, shapes).double(), joined(layers))


@pytest.mark.parametrize("tasks", [2, 8])
def test_each_task_keeps_its_total_magnitude_over_all_parameters(tasks: int) -> None:
    layers = network(tasks)
    models = whole_models(merged("emr", *layers), layers[0].tasks, [tuple(x.deltas.shape[1:]) for x in layers])
    torch.testing.assert_close(models.double().abs().sum(1), joined(layers).abs().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("tasks", [2, 8])
def test_no_other_factor_brings_a_task_nearer_than_that_of_least_squares(tasks: int) -> None:
    layers, shapes = network(tasks), [tuple(x.deltas.shape[1:]) for x in network(tasks)]
    models = {
        rescaler: whole_models(merged("emr", *layers, rescaler=rescaler), layers[0].tasks, shapes).double()
        for rescaler in ("magnitude", "least_squares")
    }
    own, nearest = joined(layers).double(), models["least_squares"]
    inside = ((own - nearest) * nearest).sum(1) / own.square().sum(1)
    torch.testing.assert_close(inside, torch.zeros_like(inside), rtol=0, atol=1e-6)  # what is left is orthogonal to it
    distances = {rescaler: (own - found).square().sum(1) for rescaler, found in models.items()}
    assert (distances["least_squares"] < distances["magnitude"]).all()
    for factor in (0.9, 1.1):
        assert ((own - factor * nearest).square().sum(1) > distances["least_squares"]).all()


def test_a_task_stores_one_bit_an_entry_and_one_scale() -> None:
    for layer, parts in zip(network(3), merged("emr", *network(3)), strict=True):
        assert isinstance(parts, Parts)
        for part in parts.tasks.values():
            assert isinstance(part, Masked)
            assert len(part.mask) == (layer.deltas[0].numel() + 7) // 8


def test_emr_by_hand() -> None:
    layers = in_pieces(torch.tensor([[4.0, -1.0, 2.0, 1.0], [1.0, -3.0, -1.0, -1.0]]))
    # elected [4, -3, 2, 0]; task 0 agrees in three entries of 9 with 8 of its own, task 1 in two of 7 with 6
    models = whole_models(merged("emr", *layers), layers[0].tasks, [(1, 2), (2,)])
    assert models[0].tolist() == pytest.approx([x * 8 / 9 for x in (4, -3, 2, 0)])
    assert models[1].tolist() == pytest.approx([x * 6 / 7 for x in (4, -3, 0, 0)])
    nearest = whole_models(merged("emr", *layers, rescaler="least_squares"), layers[0].tasks, [(1, 2), (2,)])
    assert nearest[0].tolist() == pytest.approx([x * 23 / 29 for x in (4, -3, 2, 0)])  # 16 + 3 + 4 over 16 + 9 + 4
    assert nearest[1].tolist() == pytest.approx([x * 13 / 25 for x in (4, -3, 0, 0)])  # 4 + 9 over 16 + 9
