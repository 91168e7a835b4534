from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.methods.free import high_pass
from merganser.overlays.parts import Parts, Sparse
from tests.laws.layers import merged
from tests.laws.references import Array, Given, PerTask, counted, each_task, flat, largest_of_each, unflat
from tests.laws.samples import in_pieces, joined, layer_of, network
from tests.laws.test_emr import whole_models
from tests.support import each

CASES: list[dict[str, Any]] = [
    {"cutoff": 0.0},
    {"cutoff": 0.0, "density": 1.0},
    {"cutoff": 0.23, "density": 0.3},
    {"cutoff": 0.7},
    {"cutoff": 1.0},
]


def reference(layers: Sequence[Given], *, cutoff: float, density: PerTask, experts: bool) -> list[Array]:
    """Filter each task's delta on the shifted transform; add its rescaled expert; means of magnitudes are of all."""
    tau = flat(layers)
    size = np.abs(tau).mean(1, keepdims=True)
    share = size / max(size.sum(), 1e-300)
    logs = np.log(each_task(density, layers))[:, None]
    expert = tau * largest_of_each(tau, density, layers)
    scale = -np.abs(expert).mean(1, keepdims=True) * logs / np.where(size > 0, share * size, 1)
    passed = flat([each._replace(deltas=np.stack([centred(d, cutoff) for d in each.deltas])) for each in layers])
    return unflat((share * passed).sum(0) + experts * scale * expert, layers)


def centred(delta: Array, cutoff: float) -> Array:
    """Filter a parameter of two dimensions or more, rows first, with the frequency zero in the middle."""
    if delta.ndim < 2:
        return delta
    matrix = delta.reshape(len(delta), -1)
    down, along = ((np.arange(n) - n // 2) / n for n in matrix.shape)
    near = np.sqrt(down[:, None] ** 2 + along**2) < cutoff
    shifted = np.fft.fftshift(np.fft.fft2(matrix))
    found = np.fft.ifft2(np.fft.ifftshift(np.where(near, 0, shifted)))
    assert np.abs(found.imag).max() <= 1e-12 * max(1.0, np.abs(matrix).max())
    return found.real.reshape(delta.shape)


every_shape = each("shape", [(6, 8), (7, 8), (6, 5), (7, 5), (1, 9), (9, 1), (1, 1)])
every_cutoff = each("cutoff", [0.0, 0.1, 0.26, 0.5, 0.71])


def drawn(shape: tuple[int, int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@every_shape
@every_cutoff
def test_the_filter_is_idempotent_and_takes_nothing_but_norm(shape: tuple[int, int], cutoff: float) -> None:
    matrix = drawn(shape)
    once = high_pass(matrix, cutoff)
    assert once.shape == shape
    assert once.dtype == torch.float64
    torch.testing.assert_close(high_pass(once, cutoff), once)
    assert once.norm() <= matrix.norm() * (1 + 1e-12)
    assert float((once * (matrix - once)).sum()) == pytest.approx(0, abs=1e-12)  # a projection: what it drops is apart


@every_shape
def test_the_filter_keeps_all_at_zero_the_waves_above_the_cutoff_and_nothing_beyond_the_last(
    shape: tuple[int, int],
) -> None:
    matrix = drawn(shape)
    torch.testing.assert_close(high_pass(matrix, 0.0), matrix)
    assert high_pass(matrix, 0.71).abs().max() <= 1e-12
    torch.testing.assert_close(high_pass(matrix, 1e-6), matrix - matrix.mean())


def test_a_wave_is_dropped_by_its_own_frequency_whichever_way_it_runs() -> None:
    rows, columns = torch.meshgrid(torch.arange(15.0), torch.arange(9.0), indexing="ij")
    for down, along in ((3, 1), (-3, 1), (3, -1), (0, 4), (7, 0)):
        wave = torch.cos(2 * torch.pi * (down * rows / 15 + along * columns / 9)).double()
        distance = float(np.hypot(down / 15, along / 9))
        torch.testing.assert_close(high_pass(wave, distance - 0.01), wave, atol=1e-5, rtol=0)
        assert high_pass(wave, distance + 0.01).abs().max() <= 1e-5


def models(layers: Sequence[Any], **values: Any) -> Tensor:
    """Lay out each task's own vector: (T, n)."""
    shapes = [tuple(layer.deltas.shape[1:]) for layer in layers]
    return whole_models(merged("free", *layers, **values), layers[0].tasks, shapes).double()


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_without_a_cutoff_and_at_density_one_every_task_gets_the_weighted_sum(tasks: int) -> None:
    layers = network(tasks)
    tau = joined(layers)
    shares = tau.abs().mean(1) / tau.abs().mean(1).sum()
    assert float(shares.sum()) == pytest.approx(1)
    torch.testing.assert_close(
        models(layers, cutoff=0.0, density=1.0), (shares @ tau).expand(tasks, -1), rtol=1e-5, atol=1e-9
    )


def test_one_task_alone_is_itself() -> None:
    assert torch.equal(models(network(1), cutoff=0.0, density=1.0), joined(network(1)))


def test_without_experts_every_task_has_the_filtered_merge() -> None:
    layers = network(3)
    found = models(layers, cutoff=0.2, density=0.1, experts=False)
    assert all(torch.equal(own, found[0]) for own in found)
    assert not torch.equal(found[0], models(layers, cutoff=0.2, density=0.1)[0])


def test_the_shared_merge_is_stored_once_and_an_expert_is_a_share_of_the_whole_vector() -> None:
    layers = network(3)
    found = [parts for parts in merged("free", *layers, density=0.1) if isinstance(parts, Parts)]
    for task in layers[0].tasks:
        stored = [part.count for parts in found for part in [parts.tasks[task]] if isinstance(part, Sparse)]
        assert len(stored) == len(layers)
        assert sum(stored) == counted(0.1, joined(layers).shape[1])
    for layer, parts in zip(layers, found, strict=True):
        assert parts.unified is not None
        assert parts.unified.shape == layer.deltas.shape[1:]


def test_parameters_of_one_dimension_are_not_filtered() -> None:
    same = torch.ones(1, 4)
    parts = merged("free", layer_of("square", same.view(1, 2, 2)), layer_of("bias", same), density=0.2)
    shared = [each.unified for each in parts if isinstance(each, Parts)]
    assert shared[0] is not None
    assert shared[1] is not None
    assert shared[0].abs().max() <= 1e-6  # the same everywhere is the frequency zero
    assert torch.equal(shared[1], torch.ones(4))


def test_free_by_hand() -> None:
    layers = in_pieces(torch.tensor([[4.0, -1.0, 2.0, 1.0], [1.0, 1.0, 0.0, 0.0]]))
    # magnitudes 8 and 2, so shares 0.8 and 0.2; the sum is [3.4, -0.6, 1.6, 0.8], and the first two lose their mean
    shared = torch.tensor([2.0, -2.0, 1.6, 0.8], dtype=torch.float64)
    first, second = models(layers, cutoff=0.1, density=0.25)
    rate = float(np.log(4))  # the first's largest entry is half of it, over 0.8: 0.625; the second's two are all of it
    torch.testing.assert_close(first, shared + torch.tensor([4 * 0.625 * rate, 0, 0, 0]), rtol=1e-6, atol=0)
    torch.testing.assert_close(second, shared + torch.tensor([1 * 5 * rate, 1 * 5 * rate, 0, 0]), rtol=1e-6, atol=0)
