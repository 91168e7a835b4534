"""Work through a layer in blocks: they bound the memory of intermediate results, and fit with them into a CPU's cache.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

BLOCK = 1 << 17  # values of all tasks together
GPU_BLOCK = 1 << 23  # the same on a GPU: each kernel has enough to do
LOOPED = (torch.float32, torch.float64)
LARGE = 1 << 16  # values from which loops are worth their import
IN_ORDER = 4  # tasks at most whose sums torch takes in their order wherever they lie: loops have the same bits


def blocks(stack: Tensor, unit: int = 1) -> tuple[Tensor, ...]:
    """Cut the tasks' tensors (T, ...) into blocks (T, C), in reading order.

    C is a multiple of `unit`.

    >>> [block.shape for block in blocks(torch.zeros(2, 3, 5))]
    [torch.Size([2, 15])]
    """
    flat = stack.reshape(len(stack), -1)
    return flat.split(max(1, block_size(flat.device) // len(stack) // unit) * unit, dim=1)


def block_size(device: torch.device) -> int:
    """Return how many values of all tasks make a block on a device."""
    return BLOCK if device.type == "cpu" else GPU_BLOCK


def is_looped(values: Tensor) -> bool:
    """Tell whether the compiled loops of `merganser.linalg.loops` accept these values."""
    return values.device.type == "cpu" and values.dtype in LOOPED


def is_summed_in_order(values: Tensor, weights: Tensor) -> bool:
    """Tell whether a loop sums these values (T, ...), each times a weight, to torch's bits, and is worth it.

    >>> is_summed_in_order(torch.zeros(2, LARGE), torch.zeros(2, 1).double())
    True
    """
    is_large = len(values) <= IN_ORDER and values.numel() >= LARGE
    return is_large and is_looped(values) and values.is_contiguous() and weights.dtype == torch.float64


def by_blocks(reduce: Callable[[Tensor], Tensor], stack: Tensor, dtype: torch.dtype) -> Tensor:
    """Reduce the tasks' tensors (T, ...) to one, block by block (T, C).

    >>> by_blocks(lambda block: block.sum(0), torch.ones(3, 2, 2), torch.float32)
    tensor([[3., 3.],
            [3., 3.]])
    """
    pieces = blocks(stack)
    if len(pieces) == 1:
        return reduce(pieces[0]).reshape(stack.shape[1:]).to(dtype)
    return join_pieces(map(reduce, pieces), stack.shape[1:], dtype, stack.device)


def join_pieces(pieces: Iterable[Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Write consecutive pieces (C,) into a tensor of this shape.

    >>> join_pieces([torch.zeros(3), torch.ones(1)], (2, 2), torch.float32, torch.device("cpu"))
    tensor([[0., 0.],
            [0., 1.]])
    """
    out = torch.empty(tuple(shape), dtype=dtype, device=device)
    flat, start = out.view(-1), 0
    for piece in pieces:
        flat[start : start + len(piece)] = piece
        start += len(piece)
    return out
