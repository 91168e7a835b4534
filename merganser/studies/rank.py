"""The rank sweep: the base plus one task's delta, every matrix truncated to a share of its rank (TSV, figure 2)."""

from collections.abc import Iterator

from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import in_file
from merganser.inputs.deltas import Deltas
from merganser.inputs.factors import FactorSource
from merganser.inputs.layers import LayerDeltas, LayerFactors, dense_layer
from merganser.linalg.counts import count_of
from merganser.linalg.svd import leading, rebuilt

WHOLE = 1.0  # the untruncated delta, so the fine-tuned model


def fractions_of(fractions: list[float]) -> list[float]:
    """List the shares to measure, ascending, ending with the whole delta; empty if none is given."""
    return sorted({*fractions, WHOLE}) if fractions else []


def truncated_model(
    base: Checkpoint, deltas: Deltas, factors: FactorSource, fraction: float
) -> Iterator[tuple[str, Tensor]]:
    """Yield the base plus one task's delta, with its matrices truncated to floor(fraction * R) singular triples.

    Vectors are added whole. `deltas` and `factors` are of this task only.
    """

    def parameter(name: str) -> Tensor:
        weights = base.read(name)
        if name not in deltas.kinds:
            return weights
        if fraction == WHOLE or deltas.kinds[name] == "vector":
            layer = dense_layer(deltas.layer(name))
            assert isinstance(layer, LayerDeltas)
            return added(weights, layer.deltas[0])
        layer = factors.layer(name)
        assert isinstance(layer, LayerFactors), f"{name} is a matrix in the deltas but not in the factors"
        return added(weights, rebuilt(leading(layer.factors[0], count_of(fraction, min(layer.shape)))))

    return in_file(base, ((name, parameter(name)) for name in base.names))
