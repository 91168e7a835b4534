"""Elect one sign per entry (TIES, arXiv:2306.01708). Legend: T tasks."""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import join_pieces
from merganser.linalg.select import Cut
from merganser.operators.coefficients import PerTask
from merganser.operators.sums import total
from merganser.operators.trim import Sparse, blocks_of, loop_arguments, trim, vector_cut


def elect_sign(deltas: Sparse, draw: int = 0) -> Tensor:
    """Return the sign of the sum over tasks (T, ...): the direction with the larger total magnitude; `draw` on a draw.

    >>> elect_sign(torch.tensor([[3.0, 1.0, 2.0], [-1.0, -4.0, -2.0]]))
    tensor([ 1., -1.,  0.])
    """
    if arguments := loop_arguments(deltas):
        from merganser.linalg import loops

        signs = torch.empty(deltas.shape[1:], dtype=deltas.dtype)
        loops.elect(*(each.numpy() for each in arguments), draw, signs.view(-1).numpy())
        return signs
    return join_pieces(
        (_sign(block, draw) for block in blocks_of(deltas)), deltas.shape[1:], deltas.dtype, deltas.device
    )


def _sign(block: Tensor, draw: int) -> Tensor:
    sign = total(block).sign_()
    return sign.masked_fill_(sign == 0, draw) if draw else sign


def winning_sign(layers: LayerSource, sparse: Callable[[LayerDeltas], Sparse]) -> int:
    """Elect signs in all layers, on the deltas as `sparse` returns them; return the sign that wins more entries.

    1 on a draw.
    """
    return -1 if sum(layers.map(lambda layer: balance_of(elect_sign(sparse(layer))))) < 0 else 1


def cut_and_winner(layers: LayerSource, density: PerTask) -> tuple[Cut, int]:
    """Find the cut of each task's whole vector, and the sign that wins more entries."""
    cut = vector_cut(layers, density)
    return cut, winning_sign(layers, lambda layer: trim(layer.deltas, cut))


def balance_of(sign: Tensor) -> int:
    """Return how many more entries are positive than negative.

    >>> balance_of(torch.tensor([1.0, -1.0, 0.0, -1.0]))
    -1
    """
    return int(sign.sum(dtype=torch.int64))
