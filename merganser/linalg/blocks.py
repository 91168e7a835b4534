"""Work through a layer in blocks that fit into the CPU's cache together with their intermediate results.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

BLOCK = 1 << 17  # values of all tasks together
LOOPED = (torch.float32, torch.float64)


def blocks(stack: Tensor, unit: int = 1) -> tuple[Tensor, ...]:
    """Cut the tasks' tensors (T, ...) into blocks (T, C), in reading order; on a GPU into a single block.

    C is a multiple of `unit`.

    >>> [block.shape for block in blocks(torch.zeros(2, 3, 5))]
    [torch.Size([2, 15])]
    """
    flat = stack.reshape(len(stack), -1)
    return flat.split(max(1, BLOCK // len(stack) // unit) * unit, dim=1) if flat.device.type == "cpu" else (flat,)


def is_looped(values: Tensor) -> bool:
    """Tell whether the compiled loops of `merganser.linalg.loops` accept these values."""
    return values.device.type == "cpu" and values.dtype in LOOPED


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
