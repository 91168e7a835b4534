"""Drop entries at random and rescale the rest (DARE, arXiv:2311.03099; by magnitude: DELLA, arXiv:2406.11617).

The random numbers depend on the seed, the task's name and the parameter's name alone: neither the order of tasks and
layers, nor the device, nor a resumed run changes them, and related methods draw the same ones.
Legend: T tasks, C entries of a block.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks

INDEX = 32  # bits


def uniforms(shape: Sequence[int], *, seed: int, task: str, parameter: str) -> Tensor:
    """Draw one number in [0, 1) per entry, on the CPU."""
    return torch.rand(tuple(shape), generator=generator_of(seed, task, parameter))


def generator_of(seed: int, task: str, parameter: str) -> torch.Generator:
    """Make the source of one task's random numbers for one parameter; drawn in blocks or at once, they are the same."""
    digest = sha256("\0".join((str(seed), task, parameter)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def drop_and_rescale(deltas: Tensor, drop_rate: float | Tensor, numbers: Tensor) -> Tensor:
    """Drop each entry whose random number is below its `drop_rate`; divide it otherwise by 1 - drop_rate.

    That keeps the expectation. `drop_rate` is one number, or one for each entry.
    """
    return (deltas * (numbers >= drop_rate)).div_(1 - drop_rate)


def each_dropped(layer: LayerDeltas, drop_rate: float) -> Iterator[Tensor]:
    """Drop and rescale each task's delta of a layer with its own random numbers, block by block (T, C)."""
    for block, numbers in _drawn(layer, 1):
        yield drop_and_rescale(block, drop_rate, numbers)


def each_dropped_by_magnitude(layer: LayerDeltas, drop_rate: float, eps: float) -> Iterator[Tensor]:
    """Do the same with the rates of `rates_by_magnitude`."""
    row = layer.shape[-1] if layer.shape else 1
    for block, numbers in _drawn(layer, row):
        rates = rates_by_magnitude(block.unflatten(1, (-1, row)), drop_rate, eps)
        yield drop_and_rescale(block, rates.flatten(1), numbers)


def rates_by_magnitude(deltas: Tensor, drop_rate: float, eps: float) -> Tensor:
    """Spread the drop rate (...) over each row: from drop_rate - eps/2 for its largest entry, by eps/N down the ranks.

    A row is what the last dimension holds, N entries. The larger of two magnitudes is dropped less, of equal ones the
    first. The rates are float32, as the random numbers they are compared with.
    """
    order = by_magnitude(torch.atleast_1d(deltas))
    n = order.shape[-1]
    by_rank = drop_rate - eps / 2 + eps / n * torch.arange(n, dtype=torch.float64, device=deltas.device)
    rates = torch.empty(order.shape, device=deltas.device)
    return rates.scatter_(-1, order, by_rank.float().expand(order.shape)).reshape(deltas.shape)


def by_magnitude(rows: Tensor) -> Tensor:
    """Return the places of each row's entries (..., N) from the largest magnitude down; of equal ones the first first.

    On a CPU, float32 patterns and places are sorted as one number: by numpy, ten times as fast as torch.
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
