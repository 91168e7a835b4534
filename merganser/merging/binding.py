"""Bind a method to its values: a first pass before the first layer is merged, and the function of one layer.

A function of all layers takes those with the same values as one vector. Layers that differ in their scaling alone are
still one vector: it multiplies the result.

An entry's `layers` are patterns of parameters' names, with the values of its method in the layers that they match.

A pattern is matched against the whole name: `*` stands for any text, `?` for one character, `[ab]` for one of these,
and A-B between dots for each whole number from A to B. If several patterns match a layer, each overrides those above
it, value by value.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from merganser.checkpoints.tensors import parameter_of
from merganser.errors import InputError, did_you_mean
from merganser.inputs.factors import FactorSettings, factorised
from merganser.inputs.layers import (
    Layer,
    LayerDeltas,
    LayerSource,
    MappedLayers,
    SomeLayers,
    dense_layer,
    replace_innermost,
    weighted,
)
from merganser.inputs.pieces import ByParameter
from merganser.merging.devices import each_tensor
from merganser.operators.coefficients import check_maps, task_weights
from merganser.overlays.parts import Parts

if TYPE_CHECKING:
    from merganser.merging.method import Method


LAYERS = "layers"
RANGE = re.compile(r"(?<![^.])(\d+)-(\d+)(?![^.])")  # between dots, or at an end
NUMBER = "\ue000"  # in a pattern's place of a range: a character that no name has, and that fnmatch takes as it is
MOST = 10_000  # numbers in a range
Values = dict[str, Any]


@cache
def _matcher(pattern: str) -> Callable[[str], object]:
    ranges = [range(int(first), int(last) + 1) for first, last in RANGE.findall(pattern)]
    expression = translate(RANGE.sub(NUMBER, pattern))
    for numbers in ranges:
        expression = expression.replace(NUMBER, f"(?:{'|'.join(map(str, numbers))})", 1)
    return re.compile(expression).match


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern matches a parameter's name.

    >>> [name for name in ("h.0.mlp.bias", "h.7.mlp.bias", "h.12.mlp.bias") if matches("h.0-11.*", name)]
    ['h.0.mlp.bias', 'h.7.mlp.bias']
    """
    return _matcher(pattern)(parameter_of(name)) is not None


def pattern_mistake(pattern: object) -> str | None:
    """Say what is wrong with a pattern, None if nothing is."""
    if not isinstance(pattern, str) or not pattern:
        return 'expected a pattern of parameters\' names, such as "*.layers.0-3.*"'
    for first, last in RANGE.findall(pattern):
        if not int(first) <= int(last) < int(first) + MOST:
            return f"{first}-{last}: expected the smaller number first, and at most {MOST} numbers"
    return None


def layer_values(values: Mapping[str, Any], name: str) -> Values:
    """Return the values that an entry has in one layer.

    >>> layer_values({"scaling": 1.0, "layers": {"h.*": {"scaling": 0.5}, "*.bias": {"scaling": 0.1}}}, "h.0.bias")
    {'scaling': 0.1}
    """
    chosen = {key: value for key, value in values.items() if key != LAYERS}
    for pattern, own in values.get(LAYERS, {}).items():
        if matches(pattern, name):
            chosen |= own
    return chosen


def by_values(
    values: Mapping[str, Any], names: Iterable[str], parameter: Callable[[str], str]
) -> list[tuple[Values, list[str]]]:
    """Group layers by the values that an entry has in the parameters that they are, or are rows of."""
    groups: dict[str, tuple[Values, list[str]]] = {}
    for name in names:
        own = layer_values(values, parameter(name))
        groups.setdefault(json.dumps(own, sort_keys=True), (own, []))[1].append(name)
    return list(groups.values())


def variants(values: Mapping[str, Any]) -> list[Values]:
    """Return an entry's own values, and those that each of its patterns makes of them."""
    own = {key: value for key, value in values.items() if key != LAYERS}
    return [own, *(own | each for each in values.get(LAYERS, {}).values())]


def each_map(values: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Values]) -> Values:
    """Change an entry's own values and those of each pattern in the same way."""
    changed = change({key: value for key, value in values.items() if key != LAYERS})
    by_pattern = {pattern: change(own) for pattern, own in values.get(LAYERS, {}).items()}
    return changed | ({LAYERS: by_pattern} if by_pattern else {})


def check_tasks(method: "Method", values: Mapping[str, Any], tasks: Sequence[str], place: str = "") -> None:
    """Raise InputError if a map by task names an unknown task, or lacks one; `place`: the start of the message."""
    check_maps({key: value for key, value in values.items() if key != LAYERS}, tasks, method.every_task, place)
    for pattern, own in values.get(LAYERS, {}).items():
        check_maps(own, tasks, method.every_task, f"{place}{LAYERS}.{pattern}.")


def check_patterns(values: Mapping[str, Any], names: Collection[str], place: str = "") -> None:
    """Raise InputError naming the first pattern that matches none of the parameters' names."""
    for pattern in values.get(LAYERS, {}):
        if not any(matches(pattern, name) for name in names):
            wider = (f"*.{pattern}.*", f"{pattern}.*", f"*.{pattern}", f"*{pattern}*")
            fitting = next((each for each in wider if any(matches(each, name) for name in names)), None)
            near = f'; write "{fitting}"' if fitting else did_you_mean(pattern, names) or f"; one is {min(names)}"
            raise InputError(f"{place}{LAYERS}.{pattern}: matches the name of no parameter that is merged{near}")


Merge = Callable[[Layer], Tensor | Parts]
Group = tuple[Values, list[str]]  # values, and the names of the layers that have them
SCALING = "scaling"


def bound(method: "Method", values: Mapping[str, Any], layers: LayerSource) -> Merge:
    """Return a function that merges one layer; see `Method.bind`."""
    check_tasks(method, values, layers.tasks)
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
        source = layers if len(vector) == len(groups) else replace_innermost(layers, partial(SomeLayers, chosen=chosen))
        merges |= _merges(method, vector, MappedLayers(source, taken))
    return lambda layer: merges[layer.name](taken(layer))


def _unweighted(method: "Method", values: Values) -> Values:
    """Return the values without those that the tasks' weights already include."""
    if not method.weighted:
        return values
    own = {key: value for key, value in values.items() if key != "coefficients"}
    return own | ({SCALING: 1.0} if isinstance(own.get(SCALING), Mapping) else {})


def _vectors(method: "Method", groups: Sequence[Group]) -> list[list[Group]]:
    """Group the values that belong to one vector: those that differ in one model's scaling alone, or not at all."""
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
    merge_of: dict[str, Merge] = {}
    for own, names in vector:
        scaling = own[SCALING]
        merge = merges[scaling is None]
        merge_of |= dict.fromkeys(names, merge if scaling is None else partial(_scaled, merge=merge, scaling=scaling))
    return merge_of


def _scaled(layer: Layer, merge: Merge, scaling: float) -> Tensor:
    return cast(Tensor, merge(layer)) * scaling


def _bound(method: "Method", own: Values, source: LayerSource) -> Merge:
    """Bind the method's function, and the one for vectors, to values."""
    given = partial if method.shipped else _on_copies
    merge_matrix = given(method.function, **own)
    if method.by_parameter:
        merge_matrix = cast(Any, ByParameter(source, merge_matrix))
    elif method.first_pass:
        merge_matrix = merge_matrix(source)
    merge_vector = merge_matrix if method.vectors == "alike" else given(method.vectors, **own)

    def merge(layer: Layer) -> Tensor | Parts:
        return (merge_vector if layer.kind == "vector" else merge_matrix)(layer)

    return merge


def _on_copies(function: Callable[..., Any], **own: Any) -> Callable[[Any], Any]:
    """Give a function copies of the layers that it merges or passes over: it may change them, which are read again."""

    def merge(read: Layer | LayerSource) -> Any:
        made = function(MappedLayers(read, _copied) if isinstance(read, LayerSource) else _copied(read), **own)
        return _on_copies(made) if callable(made) else made

    return merge


def _copied(layer: Layer) -> Layer:
    """Return a copy of a layer whose tensors can be changed in place."""
    return each_tensor(layer, Tensor.clone)
