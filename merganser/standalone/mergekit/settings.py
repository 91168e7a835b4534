"""Values of mergekit's parameters: numbers, gradients over the layers, and values by filters of names."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from merganser.errors import InputError

LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")  # the number of a parameter's layer, in its name
Values = dict[str, Any]


class VariesError(Exception):
    """A value that differs between parameters."""


@dataclass(frozen=True)
class Parameter:
    """A parameter's name, and its layer's relative depth in its stack, from 0 (first) to 1 (last); 0 outside layers."""

    name: str
    depth: float


def layer_of(name: str) -> int | None:
    """Return the number of a parameter's layer; None outside layers.

    >>> layer_of("model.layers.12.mlp.up_proj.weight"), layer_of("lm_head.weight")
    (12, None)
    """
    layer = LAYER.search(name)
    return int(layer[1]) if layer else None


def parameters_of(names: Iterable[str], layers: int | None = None) -> list[Parameter]:
    """Return the parameters of a model; `layers`: those of its only stack, the last ones of which may not count.

    A model of several stacks, such as an encoder and a decoder, has depths in each.

    >>> [parameter.depth for parameter in parameters_of(["h.0.w", "h.1.w", "h.2.w", "norm.w", "tower.0.w"])]
    [0.0, 0.5, 1.0, 0.0, 1.0]
    """
    places = {name: place for name in names if (place := LAYER.search(name))}
    last: dict[str, int] = {}
    for name, place in places.items():
        stack = name[: place.start()]
        last[stack] = max(int(place[1]), last.get(stack, 0))
    if layers and len(last) == 1:
        last = dict.fromkeys(last, layers - 1)
    parameters = []
    for name in names:
        own = places.get(name)
        end = last[name[: own.start()]] if own else 0
        parameters.append(Parameter(name, 0.0 if own is None else min(1.0, int(own[1]) / end) if end else 1.0))
    return parameters


def setting_at(setting: Any, parameter: Parameter | None) -> Any:
    """Return a setting's value for a parameter; None if no filter matches it.

    A list of numbers is a gradient over the layers; other lists are steps. A list of maps has values by filter; the
    first filter that is part of the name counts. Raises VariesError if a parameter is needed and not given.

    >>> setting_at([{"filter": "mlp", "value": [0, 1]}, {"value": 0.3}], Parameter("h.1.mlp.w", 0.25))
    0.25
    """
    if isinstance(setting, Mapping):
        setting = [setting]
    if not isinstance(setting, list):
        return setting
    if parameter is None:
        raise VariesError
    if all(isinstance(part, (int, float, str)) for part in setting):
        return _on_gradient(setting, parameter.depth) if setting else None
    for part in setting:
        if not isinstance(part, Mapping) or "value" not in part or set(part) - {"value", "filter"}:
            raise InputError(f"expected a number, a list of numbers, or maps with filter and value, got {part!r}")
        wanted = part.get("filter")
        if wanted in (None, "*") or str(wanted) in parameter.name:
            return setting_at(part["value"], parameter)
    return None


def _on_gradient(steps: Sequence[Any], depth: float) -> Any:
    scaled = depth * (len(steps) - 1)
    low = int(scaled)
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in steps):
        return steps[low]
    share = scaled - low
    return (1 - share) * steps[low] + share * steps[min(len(steps) - 1, low + 1)]


def by_pattern(values_at: Callable[[Parameter], Values], everywhere: Sequence[Parameter]) -> Values:
    """Return the values of most parameters, and under `layers` the others' by name patterns."""
    groups: dict[str, tuple[Values, list[str]]] = {}
    for parameter in everywhere:
        values = values_at(parameter)
        groups.setdefault(repr(values), (values, []))[1].append(parameter.name)
    most, *others = sorted(groups.values(), key=lambda group: -len(group[1]))
    names = {parameter.name for parameter in everywhere}
    layers = {
        pattern: {key: deepcopy(value) for key, value in values.items() if most[0].get(key) != value}
        for values, own in others
        for pattern in matching_patterns(own, names)
    }
    return most[0] | ({"layers": layers} if layers else {})


def matching_patterns(own: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return patterns that match exactly these names, and few if whole layers or kinds are among them.

    >>> matching_patterns(["h.0.mlp.a", "h.0.mlp.b", "norm"], ["h.0.mlp.a", "h.0.mlp.b", "h.0.attn", "norm"])
    ['h.0.mlp.*', 'norm']
    """
    left, others, patterns = dict.fromkeys(own), set(names) - set(own), []
    while left:
        name = next(iter(left))
        pattern = next(each for each in _candidates(name) if not any(fnmatchcase(other, each) for other in others))
        patterns.append(pattern)
        left = {each: None for each in left if not fnmatchcase(each, pattern)}
    return patterns


def _candidates(name: str) -> Iterable[str]:
    """Yield patterns for a name, the widest first: its kind, its layer, its kind in the layer, the name."""
    layer = LAYER.search(name)
    if layer:
        before, number, after = name[: layer.start(1)], layer[1], name[layer.end(1) + 1 :]
        parts = after.split(".")
        yield from (f"{before}*.{'.'.join(parts[:n])}.*" for n in range(1, len(parts)))
        yield f"{before}{number}.*"
        yield from (f"{before}{number}.{'.'.join(parts[:n])}.*" for n in range(1, len(parts)))
    yield name
