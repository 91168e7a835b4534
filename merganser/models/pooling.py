"""Pool a text's tokens to one vector as sentence-transformers does, by mode, with padding on either side.

Sums are in float32 or wider, results in the states' dtype. Shape legend: B texts, L tokens, D features.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Pool = Callable[[Tensor, Tensor], Tensor]  # of states (B, L, D) and what is no padding (B, L), vectors (B, D)


def pooled(states: Tensor, mask: Tensor, modes: Sequence[str]) -> Tensor:
    """Pool states (B, L, D) in each mode, and concatenate the M modes' vectors: (B, M D).

    >>> states, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
    >>> pooled(states, mask, ["cls", "max", "mean", "lasttoken"])
    tensor([[1., 3., 2., 3.]])
    """
    return torch.cat([MODES[mode](states, mask) for mode in modes], dim=1)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.int().argmax(dim=1))


def _last(states: Tensor, mask: Tensor) -> Tensor:
    return _at(states, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1))


def _at(states: Tensor, places: Tensor) -> Tensor:
    return states[torch.arange(len(states), device=states.device), places]


def _largest(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(~mask.bool()[..., None], float("-inf")).amax(dim=1)


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return _weighted(states, mask, mask.sum(dim=1))


def _mean_by_root(states: Tensor, mask: Tensor) -> Tensor:
    return _weighted(states, mask, mask.sum(dim=1).sqrt())


def _mean_by_place(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.cumsum(dim=1) * mask
    return _weighted(states, weights, weights.sum(dim=1))


def _weighted(states: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Sum states with weights (B, L), and divide by a total per text (B,)."""
    exact = torch.promote_types(states.dtype, torch.float32)
    sums = (states.to(exact) * weights.to(exact)[..., None]).sum(dim=1)
    return (sums / total.to(exact)[:, None]).to(states.dtype)


MODES: Mapping[str, Pool] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_place,
    "lasttoken": _last,
}
