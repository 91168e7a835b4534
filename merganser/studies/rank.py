"""The rank sweep: the base plus one task's own delta, every matrix of it cut to a share of its rank (TSV, figure 2)."""

from collections.abc import Iterator

from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import as_stored
from merganser.inputs.deltas import Deltas
from merganser.inputs.factors import FactorSource
from merganser.inputs.layers import LayerDeltas, LayerFactors
from merganser.linalg.counts import count_of
from merganser.linalg.svd import leading, rebuilt

WHOLE = 1.0  # the delta itself: the fine-tuned model


def fractions_of(fractions: list[float]) -> list[float]:
    """List the shares to measure, ascending, the whole delta last; none when none is asked for."""
    return sorted({*fractions, WHOLE}) if fractions else []


def truncated_model(
    base: Checkpoint, deltas: Deltas, factors: FactorSource, fraction: float
) -> Iterator[tuple[str, Tensor]]:
    """Give the parameters of the base plus one task's delta, its matrices cut to floor(fraction * R) singular triples.

    Vectors are added whole. `deltas` and `factors` are those of the one task.
    """
    for name in base.names:
        weights = base.read(name)
        if name not in deltas.kinds:
            yield name, as_stored(base, name, weights)
        elif fraction == WHOLE or deltas.kinds[name] == "vector":
            yield name, as_stored(base, name, added(weights, _whole(deltas, name)))
        else:
            yield name, as_stored(base, name, added(weights, _truncated(factors, name, fraction)))


def _whole(deltas: Deltas, name: str) -> Tensor:
    layer = deltas.layer(name)
    dense = layer if isinstance(layer, LayerDeltas) else layer.dense()
    return dense.deltas[0]


def _truncated(factors: FactorSource, name: str, fraction: float) -> Tensor:
    layer = factors.layer(name)
    assert isinstance(layer, LayerFactors), f"{name} is a matrix in the deltas and none in the factors"
    return rebuilt(leading(layer.factors[0], count_of(fraction, min(layer.shape))))
