"""Bind a method to its values: what is computed before the first layer is merged, and the function of one layer.

A function of all layers takes those that have the same values as one vector. Layers that differ in their scaling alone
are still one vector: it multiplies the result.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from merganser.inputs.factors import FactorSettings, factorised
from merganser.inputs.layers import (
    Layer,
    LayerDeltas,
    LayerSource,
    MappedLayers,
    SomeLayers,
    beneath,
    dense_layer,
    weighted,
)
from merganser.merging.by_layer import Values, by_values, check_tasks
from merganser.operators.coefficients import task_weights
from merganser.overlays.parts import Parts

if TYPE_CHECKING:
    from merganser.merging.method import Method

Merge = Callable[[Layer], Tensor | Parts]
Group = tuple[Values, list[str]]  # values, and the names of the layers that have them
SCALING = "scaling"


def bound(method: "Method", values: Mapping[str, Any], layers: LayerSource) -> Merge:
    """Return a function that merges one layer; see `Method.bind`."""
    check_tasks(values, layers.tasks)
    groups = by_values(values, layers.names, layers.table.parameter)
    share = method.share_needed(len(layers.tasks), values)
    settings = FactorSettings(1.0 if share is None else share)
    weigh = {
        name: task_weights(own, layers.tasks) if method.weighted else None for own, names in groups for name in names
    }

    def taken(layer: Layer) -> Layer:
        """Convert a layer to the form that the function takes."""
        if method.factored:
            layer = factorised(layer, settings)
        layer = layer if method.low_rank else dense_layer(layer)
        weights = weigh[layer.name]
        if weights is None:
            return layer
        if method.weighs:
            return replace(cast(LayerDeltas, layer), weights=weights(layer.norms))
        return weighted(layer, weights(layer.norms))

    unweighted = [(_unweighted(method, own), names) for own, names in groups]
    merges: dict[str, Merge] = {}
    for vector in _vectors(method, unweighted):
        chosen = [name for _, names in vector for name in names]
        source = layers if len(vector) == len(groups) else beneath(layers, partial(SomeLayers, chosen=chosen))
        merges |= _merges(method, vector, MappedLayers(source, taken))
    return lambda layer: merges[layer.name](taken(layer))


def _unweighted(method: "Method", values: Values) -> Values:
    """Return the values without what the tasks' weights include."""
    if not method.weighted:
        return values
    own = {key: value for key, value in values.items() if key != "coefficients"}
    return own | ({SCALING: 1.0} if isinstance(own.get(SCALING), Mapping) else {})


def _vectors(method: "Method", groups: Sequence[Group]) -> list[list[Group]]:
    """Put together the groups that are one vector: those that differ in the scaling of one model, or in nothing."""
    vectors: dict[str, list[Group]] = {}
    for own, names in groups:
        rest = {key: value for key, value in own.items() if key != SCALING or not method.weighted}
        vectors.setdefault(json.dumps(rest, sort_keys=True), []).append((own, names))
    return list(vectors.values())


def _merges(method: "Method", vector: Sequence[Group], source: LayerSource) -> dict[str, Merge]:
    """Bind the function to the layers of one vector."""
    scalings = list(dict.fromkeys(own.get(SCALING) for own, _ in vector))
    if not method.first_pass or len(scalings) == 1:
        return {name: merge for own, names in vector for merge in [_bound(method, own, source)] for name in names}
    # one pass over the layers for all numbers, and another if there is the method's own default
    passes: list[float | None] = [None, 1.0] if None in scalings else [1.0]
    merges = {each is None: _bound(method, {**vector[0][0], SCALING: each}, source) for each in passes}
    found: dict[str, Merge] = {}
    for own, names in vector:
        scaling = own[SCALING]
        merge = merges[scaling is None]
        found |= dict.fromkeys(names, merge if scaling is None else partial(_scaled, merge=merge, scaling=scaling))
    return found


def _scaled(layer: Layer, merge: Merge, scaling: float) -> Tensor:
    return cast(Tensor, merge(layer)) * scaling


def _bound(method: "Method", own: Values, source: LayerSource) -> Merge:
    """Bind the function, and the one of vectors, to values."""
    merge_matrix = method.function(source, **own) if method.first_pass else partial(method.function, **own)
    merge_vector = merge_matrix if method.vectors == "alike" else partial(method.vectors, **own)

    def merge(layer: Layer) -> Tensor | Parts:
        return (merge_vector if layer.kind == "vector" else merge_matrix)(layer)

    return merge
