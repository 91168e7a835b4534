"""Drop entries at random and rescale the rest (DARE, arXiv:2311.03099; by magnitude: DELLA, arXiv:2406.11617).

The random numbers depend on the seed, the task's name and the parameter's name alone: neither the order of tasks and
layers, nor the device, nor a resumed run changes them, and related methods draw the same ones.
Legend: T tasks, C entries of a block.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import starmap

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks

INDEX = 32  # bits


def generator_of(seed: int, task: str, parameter: str) -> torch.Generator:
    """Make the source of one task's random numbers for one parameter; drawn in blocks or at once, they are the same."""
    digest = sha256("\0".join((str(seed), task, parameter)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def drop_and_rescale(deltas: Tensor, drop_rate: float | Tensor, numbers: Tensor) -> Tensor:
    """Drop each entry whose random number is below its `drop_rate`; divide it otherwise by 1 - drop_rate.

    That keeps the expectation. `drop_rate` is one number, or one for each entry.

    >>> drop_and_rescale(torch.tensor([1.0, 2.0, 3.0]), 0.5, torch.tensor([0.7, 0.1, 0.9]))
    tensor([2., 0., 6.])
    """
    return (deltas * (numbers >= drop_rate)).div_(1 - drop_rate)


def dropped(layer: LayerDeltas, drop_rate: float) -> Tensor:
    """Drop and rescale each task's delta of a layer (T, ...) with its own random numbers.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.ones(1, 100))
    >>> dropped(layer, 0.75).unique()
    tensor([0., 4.])
    """
    blocks_ = (drop_and_rescale(block, drop_rate, numbers) for block, numbers in _drawn(layer, 1))
    return _written(blocks_, layer.deltas)


def dropped_by_magnitude(layer: LayerDeltas, drop_rate: float, eps: float) -> Tensor:
    """Drop and rescale each task's delta of a layer (T, ...) with the rates of `rates_by_magnitude`.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.ones(1, 100))
    >>> dropped_by_magnitude(layer, 0.75, eps=0.0).unique()  # as DARE
    tensor([0., 4.])
    """
    row = layer.shape[-1] if layer.shape else 1

    def sparse(block: Tensor, numbers: Tensor) -> Tensor:
        rates = rates_by_magnitude(block.unflatten(1, (-1, row)), drop_rate, eps)
        return drop_and_rescale(block, rates.flatten(1), numbers)

    return _written(starmap(sparse, _drawn(layer, row)), layer.deltas)


def rates_by_magnitude(deltas: Tensor, drop_rate: float, eps: float) -> Tensor:
    """Spread the drop rate (...) over each row: from drop_rate - eps/2 for its largest entry, by eps/N down the ranks.

    A row is what the last dimension holds, N entries. The larger of two magnitudes is dropped less, of equal ones the
    first. The rates are float32, as the random numbers they are compared with.

    >>> rates_by_magnitude(torch.tensor([[1.0, -3.0]]), drop_rate=0.5, eps=0.25)
    tensor([[0.5000, 0.3750]])
    """
    order = by_magnitude(torch.atleast_1d(deltas))
    n = order.shape[-1]
    by_rank = drop_rate - eps / 2 + eps / n * torch.arange(n, dtype=torch.float64, device=deltas.device)
    rates = torch.empty(order.shape, device=deltas.device)
    return rates.scatter_(-1, order, by_rank.float().expand(order.shape)).reshape(deltas.shape)


def by_magnitude(rows: Tensor) -> Tensor:
    """Return the places of each row's entries (..., N) from the largest magnitude down; of equal ones the first first.

    On a CPU, float32 patterns and places are sorted as one number: by numpy, ten times as fast as torch.

    >>> by_magnitude(torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[1, 2, 0]])
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        return rows.abs().argsort(dim=-1, descending=True, stable=True)
    keys = rows.abs().contiguous().view(torch.int32).long().mul_(-(1 << INDEX)).add_(torch.arange(rows.shape[-1]))
    keys.numpy().sort(axis=-1)
    return keys.bitwise_and_((1 << INDEX) - 1)


def _drawn(layer: LayerDeltas, unit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Give a layer's deltas in blocks (T, C) of so many entries or a multiple, and their random numbers."""
    generators = [generator_of(layer.seed, task, layer.name) for task in layer.tasks]
    for block in blocks(layer.deltas, unit):
        numbers = torch.stack([torch.rand(block.shape[1], generator=generator) for generator in generators])
        yield block, numbers.to(block.device)


def _written(parts: Iterable[Tensor], deltas: Tensor) -> Tensor:
    """Write blocks (T, C) side by side into a tensor like the deltas (T, ...)."""
    out, start = torch.empty(deltas.shape, dtype=deltas.dtype, device=deltas.device), 0
    flat = out.view(len(out), -1)
    for part in parts:
        flat[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return out
