from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser.overlays.masked import Masked
from merganser.overlays.parts import Parts
from tests.laws.layers import delta_of, merged
from tests.laws.references import Array, Given, flat, unflat
from tests.laws.samples import in_pieces, joined, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Elect, mask and rescale, over the whole vector."""
    tau = flat(layers)
    gamma = np.sign(tau.sum(0))
    agreeing = np.where(np.sign(tau) == gamma, np.abs(tau), 0)
    unified = gamma * agreeing.max(0)
    masked = (tau * unified > 0) * unified
    size = np.abs(masked).sum(1, keepdims=True)
    return unflat(np.abs(tau).sum(1, keepdims=True) / np.where(size > 0, size, 1) * masked, layers)


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
