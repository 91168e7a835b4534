"""An entry's `layers`: patterns of parameters' names, and the values that its method has in the layers they match.

A pattern is matched against the whole name: `*` stands for any text, `?` for one character, `[ab]` for one of these,
and A-B between dots for each whole number from A to B. Of patterns that match the same layer each overrides those above
it, value by value.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cache
from typing import Any

from merganser.checkpoints.tensors import parameter_of
from merganser.errors import InputError, did_you_mean
from merganser.operators.coefficients import check_maps

LAYERS = "layers"
RANGE = re.compile(r"(?<![^.])(\d+)-(\d+)(?![^.])")  # between dots, or at an end
NUMBER = "\ue000"  # in a pattern's place of a range: a character that no name has, and that fnmatch takes as it is
MOST = 10_000  # numbers in a range
Values = dict[str, Any]


@cache
def _matcher(pattern: str) -> Callable[[str], object]:
    ranges = [range(int(first), int(last) + 1) for first, last in RANGE.findall(pattern)]
    found = translate(RANGE.sub(NUMBER, pattern))
    for numbers in ranges:
        found = found.replace(NUMBER, f"(?:{'|'.join(map(str, numbers))})", 1)
    return re.compile(found).match


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
    found = {key: value for key, value in values.items() if key != LAYERS}
    for pattern, own in values.get(LAYERS, {}).items():
        if matches(pattern, name):
            found |= own
    return found


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
    """Change an entry's own values, and those of each of its patterns, in the same way."""
    found = change({key: value for key, value in values.items() if key != LAYERS})
    by_pattern = {pattern: change(own) for pattern, own in values.get(LAYERS, {}).items()}
    return found | ({LAYERS: by_pattern} if by_pattern else {})


def check_tasks(values: Mapping[str, Any], tasks: Sequence[str], place: str = "") -> None:
    """Raise InputError if a map by task names an unknown task, or lacks one; `place`: the start of the message."""
    check_maps({key: value for key, value in values.items() if key != LAYERS}, tasks, place)
    for pattern, own in values.get(LAYERS, {}).items():
        check_maps(own, tasks, f"{place}{LAYERS}.{pattern}.")


def check_patterns(values: Mapping[str, Any], names: Collection[str], place: str = "") -> None:
    """Raise InputError naming the first pattern that matches none of the parameters' names."""
    for pattern in values.get(LAYERS, {}):
        if not any(matches(pattern, name) for name in names):
            wider = (f"*.{pattern}.*", f"{pattern}.*", f"*.{pattern}", f"*{pattern}*")
            fitting = next((each for each in wider if any(matches(each, name) for name in names)), None)
            near = f'; write "{fitting}"' if fitting else did_you_mean(pattern, names) or f"; one is {min(names)}"
            raise InputError(f"{place}{LAYERS}.{pattern}: matches the name of no parameter that is merged{near}")
