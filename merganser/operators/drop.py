"""Drop entries at random and rescale the rest (DARE, arXiv:2311.03099; by magnitude: DELLA, arXiv:2406.11617).

The random numbers depend only on the seed, the task's name and the parameter's name, not on the order of tasks and
layers, the device, a resumed run or the pieces in which a parameter is read. Related methods draw the same numbers.
Legend: T tasks, C entries of a block.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import starmap
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Rows
from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks
from merganser.operators.coefficients import PerTask, each_of

if TYPE_CHECKING:
    from merganser.linalg.uniform import State, Uniform

INDEX = 32  # bits
SKIPPED = 1 << 20  # numbers at a time
KEPT_STATES = 8  # of one generator
STREAMS = 512  # whose positions are kept, of the tasks and parameters that are being read in pieces


def generator_of(seed: int, task: str, parameter: str) -> torch.Generator:
    """Return the random generator of one task and parameter; drawn in blocks or at once, its numbers are the same."""
    return torch.Generator().manual_seed(_seed_of(seed, task, parameter))


def uniform_of(seed: int, task: str, parameter: str) -> "Uniform":
    """Return what draws the numbers that `torch.rand` draws by `generator_of`."""
    from merganser.linalg.uniform import Uniform  # its loops take a second to load

    return Uniform(_seed_of(seed, task, parameter))


def _seed_of(*names: object) -> int:
    digest = sha256("\0".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Stream:
    """The random numbers of one task and parameter, drawn piece by piece in about this order, each piece once."""

    def __init__(self, uniform: "Uniform", count: int) -> None:
        """Begin at the first of so many numbers."""
        self.left = count  # that were not drawn yet
        self._uniform, self._position, self._lock = uniform, 0, Lock()
        self._states: OrderedDict[int, State] = OrderedDict()  # by positions that a piece may begin at yet

    def draw(self, first: int, numbers: Tensor) -> None:
        """Write the numbers from the position `first` on into a tensor.

        >>> whole = torch.rand(5, generator=generator_of(0, "dtd", "proj"))
        >>> stream, drawn = Stream(uniform_of(0, "dtd", "proj"), 5), torch.empty(5)
        >>> stream.draw(2, drawn[2:])
        >>> stream.draw(0, drawn[:2])
        >>> torch.equal(drawn, whole)
        True
        """
        with self._lock:
            if first != self._position:
                self._go_to(first)
            self._position += len(numbers)
            self.left -= len(numbers)
            self._uniform.draw(numbers)

    def _go_to(self, first: int) -> None:
        """Begin where the piece begins; only where pieces come in another order does a state have to be kept."""
        self._states[self._position] = self._uniform.state()
        if len(self._states) > KEPT_STATES:
            self._states.popitem(last=False)
        at = max((position for position in self._states if position <= first), default=0)
        if at in self._states:
            self._uniform.restore(self._states.pop(at) if at == first else self._states[at])
        else:
            self._uniform.begin()
        for start in range(at, first, SKIPPED):
            self._uniform.draw(torch.empty(min(SKIPPED, first - start)))
        self._position = first


_STREAMS: OrderedDict[tuple[int, str, str], Stream] = OrderedDict()
_STREAMS_LOCK = Lock()


def draw_rows(seed: int, task: str, rows: Rows, numbers: Tensor) -> None:
    """Write the numbers of some rows, drawn where those of the rows before ended, into a tensor."""
    row = len(numbers) // (rows.stop - rows.start)
    key = (seed, task, rows.name)
    with _STREAMS_LOCK:
        stream = _STREAMS.pop(key, None) or Stream(uniform_of(*key), rows.of * row)
        _STREAMS[key] = stream
        if len(_STREAMS) > STREAMS:
            _STREAMS.popitem(last=False)
    stream.draw(rows.start * row, numbers)
    if not stream.left:  # a generator that stays among large tensors that go splits the heap
        with _STREAMS_LOCK:
            _STREAMS.pop(key, None)


def drops(*, drop_rate: PerTask, inner: str = "dare", **_: Any) -> bool:
    """Tell whether a method with these values drops entries at random.

    >>> drops(drop_rate=0.8), drops(drop_rate=0.0), drops(drop_rate=0.8, inner="ties")
    (True, False, False)
    """
    return largest_of(drop_rate) > 0 and inner.startswith("dare")


def largest_of(drop_rate: PerTask) -> float:
    """Return the largest of the tasks' rates.

    >>> largest_of(0.8), largest_of({"dtd": 0.1, "svhn": 0.3})
    (0.8, 0.3)
    """
    return max(drop_rate.values()) if isinstance(drop_rate, Mapping) else drop_rate


def drop_and_rescale(deltas: Tensor, drop_rate: float | Tensor, numbers: Tensor) -> Tensor:
    """Drop each entry whose random number is below its `drop_rate`; divide the others by 1 - drop_rate.

    This preserves the expectation. `drop_rate` is one number, or one for each entry.

    >>> drop_and_rescale(torch.tensor([1.0, 2.0, 3.0]), 0.5, torch.tensor([0.7, 0.1, 0.9]))
    tensor([2., 0., 6.])
    """
    kept = torch.ge(numbers, drop_rate, out=torch.empty_like(numbers))  # 1.0 or 0.0: a product with bool is slower
    return (deltas * kept).div_(1 - drop_rate)


def drop_layer(layer: LayerDeltas, drop_rate: PerTask) -> Tensor:
    """Drop and rescale each task's delta of a layer (T, ...) with its own random numbers.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.ones(1, 100))
    >>> drop_layer(layer, 0.75).unique()
    tensor([0., 4.])
    """
    return _written(_each_task(drop_and_rescale, drop_rate, layer, 1), layer.deltas)


def dropped_by_magnitude(layer: LayerDeltas, drop_rate: PerTask, eps: float) -> Tensor:
    """Drop and rescale each task's delta of a layer (T, ...) with the rates of `rates_by_magnitude`.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.ones(1, 100))
    >>> dropped_by_magnitude(layer, 0.75, eps=0.0).unique()  # as DARE
    tensor([0., 4.])
    """
    row = layer.shape[-1] if layer.shape else 1

    def sparse(block: Tensor, rate: float, numbers: Tensor) -> Tensor:
        rates = rates_by_magnitude(block.unflatten(1, (-1, row)), rate, eps)
        return drop_and_rescale(block, rates.flatten(1), numbers)

    return _written(_each_task(sparse, drop_rate, layer, row), layer.deltas)


def rates_by_magnitude(deltas: Tensor, drop_rate: float, eps: float) -> Tensor:
    """Return a drop rate per entry (...): drop_rate - eps/2 for the largest of its row, eps/N more for each rank below.

    A row is the N entries along the last dimension. Larger magnitudes are dropped less often; of equal ones the first
    ranks higher. The rates are float32 like the random numbers that they are compared with.

    >>> rates_by_magnitude(torch.tensor([[1.0, -3.0]]), drop_rate=0.5, eps=0.25)
    tensor([[0.5000, 0.3750]])
    """
    order = by_magnitude(torch.atleast_1d(deltas))
    n = order.shape[-1]
    by_rank = drop_rate - eps / 2 + eps / n * torch.arange(n, dtype=torch.float64, device=deltas.device)
    rates = torch.empty(order.shape, device=deltas.device)
    return rates.scatter_(-1, order, by_rank.float().expand(order.shape)).reshape(deltas.shape)


def by_magnitude(rows: Tensor) -> Tensor:
    """Return the indices that sort each row (..., N) by magnitude, largest first; a stable sort.

    On a CPU, numpy sorts float32 patterns and indices packed into one integer: ten times as fast as torch's sort.

    >>> by_magnitude(torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[1, 2, 0]])
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        return rows.abs().argsort(dim=-1, descending=True, stable=True)
    keys = rows.abs().contiguous().view(torch.int32).long().mul_(-(1 << INDEX)).add_(torch.arange(rows.shape[-1]))
    keys.numpy().sort(axis=-1)
    return keys.bitwise_and_((1 << INDEX) - 1)


def _each_task(
    drop: Callable[[Tensor, float, Tensor], Tensor], drop_rate: PerTask, layer: LayerDeltas, unit: int
) -> Iterator[Tensor]:
    """Drop and rescale a layer's deltas block by block (T, C), each task's by its own rate."""
    for block, numbers in drawn(layer, unit):
        if isinstance(drop_rate, Mapping):
            rows = zip(block.split(1), each_of(drop_rate, layer.tasks), numbers.split(1), strict=True)
            yield torch.cat(list(starmap(drop, rows)))
        else:
            yield drop(block, drop_rate, numbers)


def drawn(layer: LayerDeltas, unit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a layer's deltas in blocks (T, C), C a multiple of `unit`, with their random numbers."""
    if layer.rows:
        drawn = torch.empty(len(layer.tasks), prod(layer.shape))
        for task, own in zip(layer.tasks, drawn, strict=True):
            draw_rows(layer.seed, task, layer.rows, own)
        yield from zip(blocks(layer.deltas, unit), blocks(drawn.to(layer.deltas.device), unit), strict=True)
        return
    draws = [uniform_of(layer.seed, task, layer.name) for task in layer.tasks]
    for block in blocks(layer.deltas, unit):
        numbers = torch.empty(block.shape)
        for draw, own in zip(draws, numbers, strict=True):
            draw.draw(own)
        yield block, numbers.to(block.device)


def _written(parts: Iterable[Tensor], deltas: Tensor) -> Tensor:
    """Concatenate blocks (T, C) into a tensor like the deltas (T, ...)."""
    out, start = torch.empty(deltas.shape, dtype=deltas.dtype, device=deltas.device), 0
    flat = out.view(len(out), -1)
    for part in parts:
        flat[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return out
