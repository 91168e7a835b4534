"""The base's own weights beside the deltas, for methods that work on the models' weights."""

from dataclasses import replace

from merganser.checkpoints.kinds import as_matrix
from merganser.checkpoints.reading import Checkpoint
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, MappedLayers, dense_layer


def with_base(source: LayerSource, base: Checkpoint) -> LayerSource:
    """Return a source of deltas whose layers have the base's weights beside them; adapters are multiplied out."""

    def beside(layer: Layer) -> Layer:
        dense = dense_layer(layer)
        assert isinstance(dense, LayerDeltas), "a method on the models' weights reads deltas"
        weights = base.read(dense.name)
        weights = as_matrix(weights) if dense.kind == "matrix" else weights
        return replace(dense, base=weights.to(dense.dtype))

    return MappedLayers(source, beside)
