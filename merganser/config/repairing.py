"""Go on checking a `params.yaml` whose shape has mistakes, so that all of its mistakes come in one message."""

import copy
from collections.abc import Collection, Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from merganser.config.explaining import KeyPath, field_at, kind_at

AGAIN = 5  # times that content is looked at: what stands in for something may be wrong elsewhere
MISSING = "(missing)"  # in the place of a text that is wanted; what names it follows from a mistake that is known


def repaired(content: Any, model: type[BaseModel]) -> Any:
    """Return content that is a model's, without what was wrong: left out, or a stand-in where it must be.

    None where too much is wrong.
    """
    content = copy.deepcopy(content)
    for _ in range(AGAIN):
        try:
            model.model_validate(content)
        except ValidationError as error:
            for each in error.errors():
                _repair(content, each["loc"], each["type"], model)
        else:
            return content
    return None


def _repair(content: Any, place: KeyPath, kind: str, model: type[BaseModel]) -> None:
    if place[-1] == "[key]":
        _rename(content, place[:-1])
    else:
        _replace(content, place, kind, model)


def follows(mistake: str, wrong: Collection[str], sections: Collection[str]) -> bool:
    """Tell whether a mistake may be there for another one alone: at its place, or of what stands in for it.

    `wrong`: the places of those that are known; `sections`: those whose names others read, as `section/name`.
    """
    place, _, message = mistake.partition(": ")
    named = {f"{section}{mark}{name}" for section, name in _named(wrong) if section in sections for mark in "./"}
    at_or_in = any(place == other or place.startswith(f"{other}.") for other in wrong)
    return at_or_in or MISSING in mistake or any(name in message for name in named)


def _named(places: Collection[str]) -> Iterator[tuple[str, str]]:
    for place in places:
        section, _, rest = place.partition(".")
        if rest:
            yield section, rest.partition(".")[0]


def _rename(content: Any, place: KeyPath) -> None:
    """Make a key a text, such as a number that a name is."""
    above = _at(content, place[:-1])
    if isinstance(above, dict) and place[-1] in above:
        above[str(place[-1])] = above.pop(place[-1])


def _replace(content: Any, place: KeyPath, kind: str, model: type[BaseModel]) -> None:
    """Take out what is wrong at a place; put a stand-in there where it is a required key, or one of a map's names."""
    known = _known(content, place, model)
    above, key = _at(content, known[:-1]), known[-1] if known else None
    if isinstance(above, list):
        above.clear()  # others of the list would have moved when their turn comes
    if not isinstance(above, dict):
        return
    field = field_at(model, known)
    if kind == "extra_forbidden" or (field is not None and not field.is_required()):
        above.pop(key, None)
    else:
        above[key] = _stand_in(kind_at(model, known) if field is None else field.annotation)


def _known(content: Any, place: KeyPath, model: type[BaseModel]) -> KeyPath:
    """Return as much of a place as is one of the file: behind a union's stand the names of its types."""
    for length, key in enumerate(place):
        is_there = key in content if isinstance(content, dict) else isinstance(content, list)
        if not is_there:
            return place[: length + 1] if field_at(model, place[: length + 1]) else place[:length]
        content = _at(content, (key,))
    return place


def _at(content: Any, place: KeyPath) -> Any:
    for key in place:
        inside = content.get(key) if isinstance(content, dict) else None
        is_item = isinstance(content, list) and isinstance(key, int) and key < len(content)
        content = content[key] if is_item else inside
    return content


def _stand_in(kind: Any) -> Any:
    """Return a value of a type that checks further on take for no mistake of its own, or name."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: _stand_in(field.annotation) for key, field in kind.model_fields.items() if field.is_required()}
    if get_origin(kind) is dict:
        return {MISSING: _stand_in(get_args(kind)[1])}
    if get_origin(kind) is list:
        return []
    choices = [choice for choice in get_args(kind) if isinstance(choice, str)]
    return choices[0] if choices else MISSING
