from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.overlays.parts import LowRank, Parts
from tests.laws.layers import merged, vectors
from tests.laws.references import Array, Given, svd
from tests.laws.spectra import assert_close, cut, decomposed, drawn, every_shape, numpy_of

CASES = [{"k": 3}, {"k": 16}, {"k": 200}]


def reference(layers: Sequence[Given], *, k: int) -> list[Array]:
    """Each task's matrices cut to rank k, its vectors whole."""
    found = []
    for layer in layers:
        triples = [svd(delta) for delta in layer.deltas] if layer.kind == "matrix" else []
        cut_ = [(u[:, :k] * s[:k]) @ vh[:k] for u, s, vh in triples]
        found.append(np.stack(cut_) if cut_ else layer.deltas)
    return found


def parts_of(deltas: torch.Tensor, **values: int) -> Parts:
    (parts,) = merged("byom_lora", decomposed(deltas), **values)
    assert isinstance(parts, Parts)
    return parts


@every_shape
def test_a_rank_of_at_least_the_deltas_is_exact(shape: tuple[int, int]) -> None:
    deltas = drawn(3, shape, torch.float32)
    for task, delta in zip(parts_of(deltas, k=min(shape)).tasks.values(), numpy_of(deltas), strict=True):
        assert_close(task.delta(shape), delta, 1e-6)


def test_an_adapters_rank_is_all_that_is_stored() -> None:
    deltas = drawn(2, (40, 30), torch.float32, rank=4)
    for part, delta in zip(parts_of(deltas).tasks.values(), numpy_of(deltas), strict=True):
        assert isinstance(part, LowRank)
        assert part.u.shape == (40, 4)
        assert_close(part.delta((40, 30)), delta, 1e-6)


def test_every_matrix_keeps_k_triples_whatever_its_size() -> None:
    for shape in ((20, 30), (60, 8)):
        deltas = drawn(1, shape, torch.float32)
        (part,) = parts_of(deltas, k=5).tasks.values()
        assert_close(part.delta(shape), cut(numpy_of(deltas)[0], 5))


def test_an_unchanged_matrix_stores_nothing_and_vectors_are_whole() -> None:
    assert parts_of(torch.zeros(1, 5, 4)).tasks == {}
    (parts,) = merged("byom_lora", vectors([torch.tensor([1.0, 2.0])]), k=1)
    assert isinstance(parts, Parts)
    assert parts.tasks["task0"].delta((2,)).tolist() == [1, 2]


@pytest.mark.parametrize(("k", "share"), [(16, 0.0), (64, 0.0), (65, 1.0)])
def test_what_every_decomposition_keeps_is_enough_for_a_small_rank(k: int, share: float) -> None:
    needed = registry.get("byom_lora").rank_fraction
    assert needed is not None
    assert needed(8, k=k) == share
