"""CABS: each task keeps the largest of the entries that no task before it has kept, block by block.

Legend: T tasks, C entries of a piece, B blocks, m entries of a block.
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks, join_pieces
from merganser.linalg.counts import ceiling_of, note_kept
from merganser.merging.method import PositiveFraction, Scaling, method

Size = Annotated[int, Field(ge=1)]


@method(
    family="sparse",
    formula=r"\lambda \sum_t m_t \odot \Delta_t, \quad m_t = \mathbb{1}\big[|\Delta_t| \in \mathrm{top}_d "
    r"\text{ of each block's entries without } m_1, \ldots, m_{t-1}\big]",
    paper="Yang et al., ICML 2025, arXiv:2503.01874",
    law="tasks that keep 1/T or less share no entry; one task at density 1 is its own model",
    involvement="VDI",
    in_order=True,
    ours=("scaling",),
)
def cabs(layer: LayerDeltas, *, density: PositiveFraction = 0.25, block: Size = 256, scaling: Scaling = 1.0) -> Tensor:
    """Add, task by task, the largest entries of each block that no earlier task keeps.

    `density` is the share kept of each `block` of consecutive entries of a parameter, the paper's n of m; the last
    block may be shorter, and the authors' code drops it. A task that finds too few entries free also keeps the largest
    of the others. Equal entries are kept together. The tasks come in the order of their names; another order gives
    another merge.
    """
    pieces = (piece for stack in blocks(layer.deltas, unit=block) for piece in _kept(stack, density, block))
    summed = (piece.sum(0, dtype=torch.float64).mul_(scaling) for piece in pieces)
    return join_pieces(summed, layer.shape, layer.dtype, layer.deltas.device)


def _kept(stack: Tensor, density: float, block: int) -> Iterator[Tensor]:
    """Yield the entries (T, C) with zeros for those that are not kept: whole blocks, then what is left."""
    whole = stack.shape[1] // block * block
    for piece, size in ((stack[:, :whole], block), (stack[:, whole:], stack.shape[1] - whole)):
        if piece.shape[1]:
            masks = in_turn(piece.abs().unflatten(1, (-1, size)), ceiling_of(density, size)).flatten(1)
            note_kept(int(masks.sum()), masks.numel())
            yield piece * masks


def in_turn(sizes: Tensor, count: int) -> Tensor:
    """Mark the `count` largest entries of each block that a task may keep in turn, given sizes (T, B, m).

    Those that no task before it keeps come first, then the others. Zeros are never kept.

    >>> in_turn(torch.tensor([[[5.0, 4.0, 1.0]], [[7.0, 3.0, 2.0]], [[1.0, 2.0, 3.0]]]), 2).int().squeeze(1)
    tensor([[1, 1, 0],
            [1, 0, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    masks = torch.empty(sizes.shape, dtype=torch.bool, device=sizes.device)
    taken = torch.zeros_like(masks[0])
    for own, mask in zip(sizes, masks, strict=True):
        lacking = (count - (~taken).sum(-1, keepdim=True)).clamp(min=0)
        first = ~taken & (own >= _at(own.masked_fill(taken, -1), torch.full_like(lacking, count)))
        others = taken & (own >= _at(own.masked_fill(~taken, -1), lacking))
        torch.logical_and(first | others, own > 0, out=mask)
        taken |= mask
    return masks


def _at(sizes: Tensor, count: Tensor) -> Tensor:
    """Return the size at a rank of each block (B, m): infinity at rank 0, the least beyond the last."""
    ordered = sizes.sort(-1, descending=True).values
    chosen = ordered.gather(-1, (count - 1).clamp(0, sizes.shape[-1] - 1))
    return chosen.masked_fill(count == 0, torch.inf)
