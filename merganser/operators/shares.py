"""The number of singular triples that a method keeps of each task: a fraction of the spectrum, by default 1/T."""

from typing import Any

from merganser.inputs.layers import LayerFactors
from merganser.linalg.counts import count_of


def share_needed(tasks: int, *, rank_fraction: float | None, **_: Any) -> float:
    """Return the share of each spectrum whose singular vectors are needed.

    >>> share_needed(4, rank_fraction=None), share_needed(4, rank_fraction=0.1)
    (0.25, 0.1)
    """
    return 1 / tasks if rank_fraction is None else rank_fraction


def triples_kept(layer: LayerFactors, rank_fraction: float | None) -> int:
    """Count the triples kept of each task: floor(rank_fraction * R), R // T by default.

    >>> import torch
    >>> from merganser.linalg.decompositions import Factors
    >>> identity = Factors(torch.eye(5), torch.ones(5), torch.eye(5))
    >>> triples_kept(LayerFactors("proj", ("a", "b"), (identity, identity)), None)
    2
    """
    return count_of(share_needed(len(layer.tasks), rank_fraction=rank_fraction), min(layer.shape))
