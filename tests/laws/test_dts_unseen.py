from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.errors import InputError
from merganser.operators.sums import similarities
from merganser.overlays.parts import Parts
from tests.laws.dts import coded
from tests.laws.layers import delta_of, embeddings_of, merged, task_names, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import assert_close, decomposed, drawn


def reference(layers: Sequence[Given], *, rank_fraction: float, **_: object) -> list[Array]:
    """Each task's mixture of the others' thresholded triples (equation 8), the task's own where it is alone."""
    found = []
    for layer in layers:
        embeddings = [embeddings_of(layer.tasks)[task].double().numpy() for task in layer.tasks]
        unit = np.stack([embedding / np.sqrt((embedding**2).sum()) for embedding in embeddings])
        cosines = unit @ unit.T
        if len(layer.tasks) > 1:
            np.fill_diagonal(cosines, 0)
        weights = cosines / cosines.sum(1, keepdims=True)
        found.append(np.tensordot(weights, coded(layer, rank_fraction), axes=1))
    return found


def results(tasks: int) -> tuple[list[Parts], list[Parts]]:
    """Merge a matrix and a vector by dts_unseen, and by dts_t."""
    generator = torch.Generator().manual_seed(1)
    layers = (
        decomposed(drawn(tasks, (12, 9), torch.float32)),
        vectors(list(torch.randn(tasks, 7, generator=generator))),
    )
    unseen, seen = merged("dts_unseen", *layers), merged("dts_t", *layers)
    return [p for p in unseen if isinstance(p, Parts)], [p for p in seen if isinstance(p, Parts)]


def test_with_one_other_task_a_task_gets_that_tasks_delta() -> None:
    for unseen, seen, shape in zip(*results(2), [(12, 9), (7,)], strict=True):
        for task, other in (("task0", "task1"), ("task1", "task0")):
            assert torch.equal(delta_of(unseen, task, shape), delta_of(seen, other, shape))


def test_a_task_that_is_alone_is_its_own() -> None:
    for unseen, seen, shape in zip(*results(1), [(12, 9), (7,)], strict=True):
        assert torch.equal(delta_of(unseen, "task0", shape), delta_of(seen, "task0", shape))


def test_a_tasks_own_part_is_never_in_its_model() -> None:
    for parts in results(4)[0]:
        assert parts.mixtures.keys() == set(task_names(range(4)))  # type: ignore[arg-type]
        for task, weights in parts.mixtures.items():
            assert task not in weights
            assert sum(weights.values()) == pytest.approx(1)


def test_the_weights_by_hand() -> None:
    embeddings = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0, 0.0]), "c": torch.tensor([3.0, 4.0])}
    assert similarities("a", embeddings) == pytest.approx({"b": 1 / 1.6, "c": 0.6 / 1.6})
    assert similarities("c", embeddings) == pytest.approx({"a": 0.5, "b": 0.5})


def test_a_task_unlike_all_others_is_refused_by_name() -> None:
    embeddings = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([-1.0, 0.1])}
    with pytest.raises(InputError, match="a: its class names are unlike those of all other tasks"):
        similarities("a", embeddings)


def test_it_says_that_it_needs_embeddings() -> None:
    assert registry.get("dts_unseen").needs == ["svd", "embeddings"]


def test_a_mixture_of_matrices_by_the_formula() -> None:
    deltas = drawn(3, (12, 9), torch.float32)
    layer = decomposed(deltas)
    (parts,) = merged("dts_unseen", layer)
    assert isinstance(parts, Parts)
    (expected,) = reference([Given("w", "matrix", layer.tasks, deltas.double().numpy(), ())], rank_fraction=0.3)
    for task, delta in zip(layer.tasks, expected, strict=True):
        assert_close(delta_of(parts, task, (12, 9)), delta)
