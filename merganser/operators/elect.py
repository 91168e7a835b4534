"""Elect one sign per entry (TIES, arXiv:2306.01708). Legend: T tasks."""

from collections.abc import Iterable

import torch
from torch import Tensor

from merganser.operators.sums import total


def elect_sign(deltas: Tensor) -> Tensor:
    """Return the sign of the sum over tasks (T, ...): the direction with the larger total magnitude, 0 on a draw."""
    return total(deltas).sign_().to(deltas.dtype)


def settle_draws(sign: Tensor, majority: int) -> Tensor:
    """Give the entries without an elected sign the majority's."""
    return torch.where(sign == 0, majority, sign)


def majority_of(balance: int) -> int:
    """Return the sign that won more entries than the other, +1 if neither did; `balance` is the sum of the signs."""
    return -1 if balance < 0 else 1


def balance_of(sign: Tensor) -> int:
    """Return how many more entries are positive than negative."""
    return int((sign > 0).sum() - (sign < 0).sum())


def winning_sign(stacks: Iterable[Tensor]) -> int:
    """Elect over all layers' deltas (T, ...), one at a time, and return the sign that won more entries."""
    return majority_of(sum(map(_balance, stacks)))


def _balance(deltas: Tensor) -> int:
    return balance_of(elect_sign(deltas))
