"""Drop entries at random and rescale the rest (DARE, arXiv:2311.03099; by magnitude: DELLA, arXiv:2406.11617).

The random numbers depend on the seed, the task's name and the parameter's name alone: neither the order of tasks and
layers, nor the device, nor a resumed run changes them, and related methods draw the same ones. Legend: T tasks.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from merganser.layers import LayerDeltas


def uniforms(shape: Sequence[int], *, seed: int, task: str, parameter: str) -> Tensor:
    """Draw one number in [0, 1) per entry, on the CPU."""
    digest = sha256("\0".join((str(seed), task, parameter)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(tuple(shape), generator=generator)


def drop_and_rescale(delta: Tensor, drop_rate: float | Tensor, *, seed: int, task: str, parameter: str) -> Tensor:
    """Drop each entry with its probability `drop_rate`; divide it otherwise by 1 - drop_rate.

    That keeps the expectation. `drop_rate` is one number, or one for each entry.
    """
    numbers = uniforms(delta.shape, seed=seed, task=task, parameter=parameter).to(delta.device)
    return delta * (numbers >= drop_rate) / (1 - drop_rate)


def drop_layer(layer: LayerDeltas, drop_rate: float | Callable[[Tensor], Tensor]) -> Tensor:
    """Drop and rescale each task's delta of a layer (T, ...) with its own random numbers.

    `drop_rate` is one number, or a function that gives a delta's rates.
    """
    dropped = torch.empty_like(layer.deltas)
    for task, delta, out in zip(layer.tasks, layer.deltas, dropped, strict=True):
        rate = drop_rate(delta) if callable(drop_rate) else drop_rate
        out.copy_(drop_and_rescale(delta, rate, seed=layer.seed, task=task, parameter=layer.name))
    return dropped


def rates_by_magnitude(delta: Tensor, drop_rate: float, eps: float) -> Tensor:
    """Spread the drop rate (...) over each row: from drop_rate - eps/2 for its largest entry, by eps/N down the ranks.

    A row is what the last dimension holds, N entries. The larger of two magnitudes is dropped less, of equal ones the
    first. The rates are float32, as the random numbers they are compared with.
    """
    order = torch.atleast_1d(delta.abs()).argsort(dim=-1, descending=True, stable=True)
    n = order.shape[-1]
    by_rank = drop_rate - eps / 2 + eps / n * torch.arange(n, dtype=torch.float64, device=delta.device)
    rates = torch.empty(order.shape, device=delta.device)
    return rates.scatter_(-1, order, by_rank.float().expand(order.shape)).reshape(delta.shape)
