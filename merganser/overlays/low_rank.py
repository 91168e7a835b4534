"""Low-rank parts of a layer's tasks."""

import torch

from merganser.inputs.layers import LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import leading, rebuilt
from merganser.overlays.parts import Dense, LowRank, Part, Parts


def low_rank_parts(layer: LayerFactors, count: int) -> Parts:
    """Keep `count` singular triples of each task; if that is 0, the whole matrix, like a vector.

    The vectors keep the dtype of the factor cache, which loses nothing. A task that does not change the matrix stores
    nothing.
    """
    kept = truncated(layer, count)
    return Parts({task: _part(f, layer.stored) if count else Dense(rebuilt(f)) for task, f in kept.items()})


def truncated(layer: LayerFactors, count: int) -> dict[str, Factors]:
    """Return `count` triples of each task, all if that is 0, up to its numerical rank; no task that has none."""
    kept = {task: leading(f, count or len(f.s)) for task, f in zip(layer.tasks, layer.factors, strict=True)}
    return {task: factors for task, factors in kept.items() if len(factors.s)}


def _part(factors: Factors, stored: torch.dtype) -> Part:
    u, s, vh = (tensor.contiguous() for tensor in factors)
    return LowRank(u.to(stored), s.to(torch.float32), vh.to(stored))
