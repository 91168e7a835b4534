from collections.abc import Sequence

import pytest
import torch

from merganser.overlays.parts import Parts, Sparse
from tests.laws.layers import delta_of, merged
from tests.laws.references import Array, Given, PerTask, counted, flat, largest_of_each, unflat
from tests.laws.samples import in_pieces, network


def reference(layers: Sequence[Given], *, scaling: float, density: PerTask) -> list[Array]:
    """The scaled sum, and the largest entries of each task's difference to it."""
    whole = flat(layers)
    shared = scaling * whole.sum(0)
    own = whole - shared
    masks = largest_of_each(own, density, layers)
    return unflat(shared + masks * own, layers)


def results(tasks: int, **values: float) -> list[Parts]:
    return [parts for parts in merged("byom_fft", *network(tasks), **values) if isinstance(parts, Parts)]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_density_one_is_exact(tasks: int) -> None:
    for layer, parts in zip(network(tasks), results(tasks, density=1.0), strict=True):
        for task, delta in zip(layer.tasks, layer.deltas, strict=True):
            assert torch.equal(delta_of(parts, task, tuple(delta.shape)), delta)


@pytest.mark.parametrize("density", [0.1, 0.37])
def test_the_density_is_a_share_of_each_tasks_whole_vector(density: PerTask) -> None:
    layers, kept = network(3), results(3, density=density)
    entries = sum(layer.deltas[0].numel() for layer in layers)
    for task in layers[0].tasks:
        stored = [part.count for parts in kept for part in [parts.tasks[task]] if isinstance(part, Sparse)]
        assert len(stored) == len(layers)
        assert sum(stored) == counted(density, entries)


def test_what_is_shared_is_task_arithmetic() -> None:
    for parts, shared in zip(results(3), merged("task_arithmetic", *network(3), scaling=0.3), strict=True):
        assert isinstance(shared, torch.Tensor)
        assert parts.unified is not None
        assert torch.equal(parts.unified, shared)


def test_byom_fft_by_hand() -> None:
    first, second = [4.0, 1.0, 0.0, -2.0], [2.0, -1.0, 6.0, -2.0]
    found = merged("byom_fft", *in_pieces(torch.tensor([first, second])), scaling=0.5, density=0.25)
    # the half sum is [3, 0, 3, -2]; the tasks differ from it by [1, 1, -3, 0] and [-1, -1, 3, 0]
    models = [torch.cat([delta_of(p, t, (2,)) for p in found if isinstance(p, Parts)]) for t in ("task0", "task1")]
    assert models[0].tolist() == [3, 0, 0, -2]
    assert models[1].tolist() == [3, 0, 6, -2]
