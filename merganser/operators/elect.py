"""Elect one sign per entry (TIES, arXiv:2306.01708). Legend: T tasks."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import by_blocks
from merganser.operators.streams import Stream, over_deltas
from merganser.operators.sums import total


def elect_sign(deltas: Tensor) -> Tensor:
    """Return the sign of the sum over tasks (T, ...): the direction with the larger total magnitude, 0 on a draw."""
    return by_blocks(lambda block: total(block).sign_(), deltas, deltas.dtype)


def settled_sign(deltas: Tensor, majority: int) -> Tensor:
    """Elect a sign per entry of (T, ...); on a draw it is the majority's."""
    return by_blocks(lambda block: _positive_(total(block), majority).mul_(2).sub_(1), deltas, deltas.dtype)


def majority_of(balance: int) -> int:
    """Return the sign that won more entries than the other, +1 if neither did; `balance` is the sum of the signs."""
    return -1 if balance < 0 else 1


def balance_of(sign: Tensor) -> int:
    """Return how many more entries are positive than negative."""
    return int(sign.sum(dtype=torch.int64))


def winning_sign(layers: Stream, sparse: Callable[[LayerDeltas], Iterable[Tensor]]) -> int:
    """Elect over all layers, of which `sparse` gives what is to be merged in blocks; return the sign that won more."""
    return majority_of(sum(over_deltas(layers, partial(_balance, sparse=sparse))))


def _balance(layer: LayerDeltas, sparse: Callable[[LayerDeltas], Iterable[Tensor]]) -> int:
    return sum(balance_of(elect_sign(block)) for block in sparse(layer))


def _positive_(sums: Tensor, majority: int) -> Tensor:
    """Turn sums into 1 where they are positive, or where they are 0 and the majority is, else 0."""
    return sums.gt_(0) if majority < 0 else sums.ge_(0)
