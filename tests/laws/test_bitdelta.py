from collections.abc import Sequence

import numpy as np
import torch

from merganser.overlays.parts import Binary, Parts
from tests.laws.layers import delta_of, matrices, merged, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import drawn, every_shape


def reference(layers: Sequence[Given]) -> list[Array]:
    """Give each task's matrix its signs and its mean magnitude; keep vectors."""
    return [coded(layer.deltas) if layer.kind == "matrix" else layer.deltas for layer in layers]


def coded(deltas: Array) -> Array:
    sizes = np.abs(deltas).mean((1, 2), keepdims=True)
    return np.where(deltas < 0, -sizes, sizes)


def parts_of(*deltas: torch.Tensor) -> Parts:
    (parts,) = merged("bitdelta", matrices(list(deltas)))
    assert isinstance(parts, Parts)
    return parts


def test_bitdelta_by_hand() -> None:
    delta = torch.tensor([[1.0, -2.0, 0.0], [-4.0, 5.0, -6.0]])
    assert delta_of(parts_of(delta), "task0", (2, 3)).tolist() == [[3.0, -3.0, 3.0], [-3.0, 3.0, -3.0]]


@every_shape
def test_a_delta_of_one_magnitude_is_exact(shape: tuple[int, int]) -> None:
    delta = 0.25 * torch.where(drawn(1, shape, torch.float32)[0] < 0, -1.0, 1.0)
    assert torch.equal(delta_of(parts_of(delta), "task0", shape), delta)


@every_shape
def test_a_part_has_its_deltas_l1_norm_and_one_bit_an_entry(shape: tuple[int, int]) -> None:
    delta = drawn(1, shape, torch.float32)[0]
    parts = parts_of(delta)
    torch.testing.assert_close(delta_of(parts, "task0", shape).abs().sum(), delta.abs().sum())
    part = parts.tasks["task0"]
    assert isinstance(part, Binary)
    assert len(part.negative) == -(-delta.numel() // 8)


def test_vectors_are_kept_and_a_task_that_changed_nothing_stores_nothing() -> None:
    (parts,) = merged("bitdelta", vectors([torch.tensor([1.0, -3.0])]))
    assert isinstance(parts, Parts)
    assert delta_of(parts, "task0", (2,)).tolist() == [1.0, -3.0]
    assert not parts_of(torch.zeros(2, 2)).tasks
