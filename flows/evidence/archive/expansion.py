"""Count the stages and the text that a dvc.yaml expands to, before DVC expands them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from math import prod
from typing import Any

from merganser.errors import InputError

_GROUPS = ("foreach", "matrix")
_MOST_STAGES = 100_000
_MOST_VARS = 1000
_MOST_LOOKED_UP = 1_000_000
_MOST_LETTERS = 256 * 2**20
_VARIABLE = re.compile(r"\$\{([^}\n]*)\}")
_LONG = re.compile(r"\$\{[^}\n]{1001}")  # DVC takes time by the square of a name's length


def check_expansion(content: Any, files: Sequence[Any], name: str) -> None:
    """Raise InputError if a dvc.yaml expands to too many stages or too much text; `files`: what its `vars` read."""
    sections = content if isinstance(content, dict) else {}
    if _LONG.search(str(sections)):
        raise InputError(f"{name}: a variable's name, or what follows `${{`, has more than 1,000 letters")
    named = sections.get("stages")
    stages = named if isinstance(named, dict) else {}
    variables = [*files, *_inline(sections), *(own for stage in stages.values() for own in _inline(stage))]
    if len(variables) > _MOST_VARS:
        raise InputError(f"{name}: {len(variables):,} vars, and {_MOST_VARS:,} are the most")
    letters = _letters({key: value for key, value in sections.items() if key != "stages"}, variables)
    made = 0
    for stage, about in stages.items():
        kind = "matrix" if isinstance(about, dict) and "matrix" in about else "foreach"
        axes = {axis: list(_may_be(values, variables)) for axis, values in _axes(about)}
        cells = prod(max(1, *map(_length, each)) for each in axes.values())
        made += cells
        if made > _MOST_STAGES:
            raise InputError(f"{name}: {stage}: its {kind} makes {made:,} stages, and {_MOST_STAGES:,} are the most")
        letters += cells * _letters_of_stage(about, axes, variables)
    if letters > _MOST_LETTERS:
        raise InputError(
            f"{name}: its variables make {letters >> 20:,} MiB of text, and {_MOST_LETTERS >> 20} are the most"
        )


def _letters_of_stage(about: Any, axes: Mapping[str, Sequence[Any]], variables: Sequence[Any]) -> int:
    """Return the number of letters that the variables of one stage of a group expand to."""
    template = {key: value for key, value in about.items() if key not in _GROUPS} if isinstance(about, dict) else about
    named = [values for values, *_ in axes.values() if not isinstance(values, str)]
    return _letters(template, variables, _items(axes)) + _letters(named, variables)


def _inline(about: Any) -> Iterator[Any]:
    """Yield the variables defined inside a dvc.yaml, or inside one of its stages."""
    for block in (about, about.get("do")) if isinstance(about, dict) else ():
        own = block.get("vars") if isinstance(block, dict) else None
        yield from own if isinstance(own, list) else ()


def _axes(about: Any) -> Iterator[tuple[str, Any]]:
    """Yield the axes of a stage as written; the axis of a `foreach` has no name."""
    mapping = about if isinstance(about, dict) else {}
    if "foreach" in mapping:
        yield "", mapping["foreach"]
    yield from mapping["matrix"].items() if isinstance(mapping.get("matrix"), dict) else ()


def _may_be(values: Any, variables: Sequence[Any]) -> Iterator[Any]:
    """Yield an axis's possible values: those written there, and those of the variable that it names."""
    yield values
    yield from _named(values, variables) if isinstance(values, str) else ()


def _items(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return `item` and `key` of a group's stages, with the largest values of all axes first."""
    columns = {axis: [pair for each in groups for pair in _pairs(each)] for axis, groups in axes.items()}
    if "" in columns:
        return [{"key": key, "item": value} for key, value in columns[""]]
    ordered = [sorted((value for _, value in pairs), key=_size, reverse=True) for pairs in columns.values()]
    rows = zip_longest(*ordered, fillvalue="")
    return [{"key": "", "item": dict(zip(columns, row, strict=True))} for row in rows]


def _pairs(values: Any) -> list[tuple[Any, Any]]:
    if isinstance(values, dict):
        return list(values.items())
    return list(enumerate(values)) if isinstance(values, list) else []


def _named(name: str, variables: Sequence[Any]) -> Iterator[Any]:
    """Yield the values of a variable, from each place that defines it."""
    for member in variables:
        for key in re.split(r"[.\[\]]+", name.strip("${ ]}")):
            member = _member(member, key)
        if member is not None:
            yield member


def _member(content: Any, key: str) -> Any:
    if isinstance(content, list):
        with suppress(ValueError, IndexError):
            return content[int(key)]
    return content.get(key) if isinstance(content, dict) else None


def _length(axis: Any) -> int:
    """Return the number of an axis's values; a text counts its letters."""
    return len(axis) if isinstance(axis, list | dict | str) else 1


def _letters(template: Any, variables: Sequence[Any], items: Sequence[Any] = ()) -> int:
    """Return the number of letters that a template's variables expand to; `items`: possible `item` and `key`."""
    letters, names = 0, Counter(_VARIABLE.findall(str(template)))
    most = max(map(_size, items), default=0) if len(items) * len(names) > _MOST_LOOKED_UP else None
    for name, count in names.items():
        of_item = re.match(r"\s*(item|key)\b", name) and items
        sizes = map(_size, _named(name, items if of_item else variables))
        letters += count * (most if of_item and most is not None else max(sizes, default=0))
    return letters


def _size(value: Any, above: int = 0) -> int:
    """Return a value's letters; in a command, each value of a map follows the path of its keys."""
    if isinstance(value, dict):
        return sum(_size(each, above + len(str(key)) + 1) for key, each in value.items())
    return sum(_size(each, above) for each in value) if isinstance(value, list) else above + len(str(value))
