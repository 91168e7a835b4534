"""Mistakes in a file such as `params.yaml`: place, expectation and actual value, each on one line.

A file with mistakes in its shape is repaired with stand-in values and checked further, so that all mistakes come in one
message.
"""

import copy
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from merganser.config.text import KeyPath, as_line, value_at
from merganser.errors import InputError, did_you_mean

Location = tuple[str | int, ...]  # a place as pydantic says it
MERGED: KeyPath = ("parameters", "merged")
NEEDED = (("tasks",), ("methods",))
AGAIN = 5  # times that content is looked at: what stands in for something may be wrong elsewhere
MISSING = "(missing)"  # in the place of a text that is wanted; what names it follows from a mistake that is known
KEY = "[key]"  # pydantic's mark behind the place of a key that is wrong itself


@dataclass(frozen=True)
class Mistake:
    """A mistake at a place of a file, printed as `place.of.keys: text`.

    `needs`: further places that it was derived from. `has_place`: the text already names the place, as checks
    outside this package do.
    """

    place: KeyPath
    text: str
    needs: tuple[KeyPath, ...] = ()
    has_place: bool = False

    def __str__(self) -> str:
        return self.text if self.has_place or not self.place else f"{'.'.join(self.place)}: {self.text}"

    def below(self, above: KeyPath) -> "Mistake":
        """Return the mistake with its place inside another one."""
        return replace(self, place=(*above, *self.place))

    def follows(self, wrong: Collection[KeyPath]) -> bool:
        """Tell whether mistakes at known places may be its only cause: at its place, or at one of its `needs`."""
        at_or_in = any(self.place[: len(place)] == place for place in wrong)
        return at_or_in or MISSING in self.text or any(_overlap(need, place) for need in self.needs for place in wrong)


class MistakesError(InputError):
    """Report all mistakes of a file, a line each."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(dict.fromkeys(mistakes))
        super().__init__("\n".join(map(str, self.mistakes)))


def mistakes_at(place: KeyPath, error: InputError, *, has_place: bool = False) -> list[Mistake]:
    """Return each line of an error as a mistake at a place; `has_place`: as in `Mistake`."""
    return [Mistake(place, line, has_place=has_place) for line in str(error).splitlines()]


@contextmanager
def collecting_mistakes(mistakes: list[Mistake], place: KeyPath) -> Iterator[None]:
    """Turn an InputError in the block into mistakes, at a place, or at `parameters.merged` if its text starts so."""
    try:
        yield
    except InputError as error:
        own = str(error).startswith(f"{'.'.join(MERGED)}: ")  # whichever model it was found with
        mistakes += mistakes_at(MERGED if own else place, error, has_place=own)


def _overlap(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Tell whether one place equals the other or is inside it."""
    return all(a == b for a, b in zip(one, other, strict=False))


def mistakes_in(
    content: Any, model: type[BaseModel], above: KeyPath = (), beside: tuple[str, ...] = ()
) -> list[Mistake]:
    """List why content does not fit a model; empty if it fits.

    `above`: the model's place in the file; `beside`: allowed keys that are not the model's.
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        wrong = error.errors()
        meant = [each for each in wrong if _is_meant(each, model)]
        left = [
            each for each in wrong if each not in meant and not any(_overlap(each["loc"][:-1], m["loc"]) for m in meant)
        ]
        return [_explained(each, model, above, beside) for each in (*meant, *left)]
    return []


def _is_meant(mistake: Any, model: type[BaseModel]) -> bool:
    """Tell whether content that fits no type of a union is closest to the type of this mistake."""
    place, got = mistake["loc"], mistake["input"]
    if not place or not _is_choice(kind_at(model, place[:-1])):
        return True
    return isinstance(got, dict) == (mistake["type"] in ("dict_type", "model_type"))


def _is_choice(kind: Any) -> bool:
    """Tell whether a type is a union, whose member pydantic names in a place."""
    return get_origin(kind) in (Union, UnionType)


def _explained(mistake: Any, model: type[BaseModel], above: KeyPath, beside: tuple[str, ...]) -> Mistake:
    location = mistake["loc"]
    keys = (key for number, key in enumerate(location) if not _is_choice(kind_at(model, location[:number])))
    place = (*above, *(str(key) for key in keys if key != KEY))
    if KEY in mistake["loc"] and mistake["type"] == "string_type":
        got = mistake["input"]
        return Mistake(place, f'a name must be text, got {abbreviate(got)}; write "{got}"')
    return Mistake(place, _explain(mistake, model, above, beside))


def _explain(mistake: Any, model: type[BaseModel], above: KeyPath, beside: tuple[str, ...]) -> str:
    """Return what pydantic found wrong, without its place."""
    place, kind, got = mistake["loc"], mistake["type"], mistake["input"]
    if kind == "extra_forbidden":
        known = [*(beside if len(place) == 1 else ()), *_keys_at(model, place[:-1])]
        return f"unknown key{did_you_mean(str(place[-1]), known)}"
    if kind == "missing":
        example = _example_at(model, place)
        expected = f"expected {', '.join(_keys_at(model, place[:-1]))}" if example is None else f"for example {example}"
        return f"missing; {expected}"
    if kind == "too_short" or (got is None and (*above, *place) in NEEDED):
        return "there are none; declare at least one"
    if kind in ("dict_type", "model_type"):
        field = field_at(model, place)
        none = "; leave it out for none" if got is None and field is not None and not field.is_required() else ""
        return f"expected a mapping, got {abbreviate(got)}{none}"
    if kind == "string_pattern_mismatch":
        return f"must have {{}} once, where the class name goes, and no other brace, got {abbreviate(got)}"
    if kind == "value_error":  # of a check of the model's own, which names the key
        return str(mistake["ctx"]["error"])
    near = did_you_mean(str(got)[:200], _choices(kind_at(model, place))) if kind == "literal_error" else ""
    return f"{mistake['msg']}, got {abbreviate(got)}{near}"


def _choices(kind: Any) -> list[str]:
    """List the texts that a type allows."""
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if isinstance(choice, str)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def abbreviate(value: Any) -> str:
    """Return a value as the file has it, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _example_at(model: type[BaseModel], place: Location) -> str | None:
    """Return an example of a missing line of the file; None if there is none."""
    key, field = str(place[-1]), field_at(model, place)
    value = None if field is None else _example(field)
    if field is None or value is None:
        return None
    example = as_line(key, value)
    return f"{example}, {field.description}" if field.description else example


def _example(field: FieldInfo) -> Any:
    """Return a field's stated example, else its first choice, else its type with the required keys only."""
    kind = field.annotation
    if field.examples:
        return field.examples[0]
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: _example(inner) for key, inner in kind.model_fields.items() if inner.is_required()}
    return None


def _keys_at(model: type[BaseModel], place: Location) -> list[str]:
    """List the keys of the section at a place in the model."""
    kind = kind_at(model, place)
    return list(getattr(kind, "model_fields", []))


def field_at(model: type[BaseModel], place: Location) -> FieldInfo | None:
    """Return the model's field at a place; None for a name in a map, and for an unknown key."""
    fields: dict[Any, FieldInfo] = getattr(kind_at(model, place[:-1]), "model_fields", {})
    return fields.get(place[-1]) if place else None


def kind_at(model: type[BaseModel], place: Location) -> Any:
    """Return the type at a place in the model; of an optional one, the type of its value."""
    kind: Any = model
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        fields, parts = getattr(kind, "model_fields", None), get_args(kind)
        if _is_choice(kind):  # in a place of pydantic the name of one of its types follows
            kind = next((each for each in parts if getattr(each, "__name__", "") == part), parts[0])
            continue
        field = fields.get(part) if fields is not None else None
        kind = (parts[-1] if parts else Any) if fields is None else (field.annotation if field else Any)
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
    return kind


def repaired(content: Any, model: type[BaseModel]) -> Any:
    """Return content that fits a model: wrong values are left out, or replaced by stand-ins if required.

    None if too much is wrong.
    """
    content = copy.deepcopy(content)
    for _ in range(AGAIN):
        try:
            model.model_validate(content)
        except ValidationError as error:
            for detail in error.errors():
                _repair(content, detail["loc"], detail["type"], model)
        else:
            return content
    return None


def _repair(content: Any, place: Location, kind: str, model: type[BaseModel]) -> None:
    """Remove a wrong value; replace it by a stand-in if its key is required, or is a name in a map.

    A key that is not text, such as a number, becomes text; a text that cannot be a key is left out.
    """
    if place[-1] == KEY:
        named = value_at(content, place[:-2])
        if isinstance(named, dict) and place[-2] in named:
            value = named.pop(place[-2])
            named |= {} if isinstance(place[-2], str) else {str(place[-2]): value}
        return
    known = _known(content, place, model)
    above, key = value_at(content, known[:-1]), known[-1] if known else None
    if isinstance(above, list):
        above.clear()  # others of the list would have moved when their turn comes
    if not isinstance(above, dict):
        return
    field = field_at(model, known)
    if kind == "extra_forbidden" or (field is not None and not field.is_required()):
        above.pop(key, None)
    else:
        above[key] = _stand_in(kind_at(model, known) if field is None else field.annotation)


def _known(content: Any, place: Location, model: type[BaseModel]) -> Location:
    """Return the part of a place that exists in the file: pydantic adds the names of a union's types."""
    for length, key in enumerate(place):
        is_there = key in content if isinstance(content, dict) else isinstance(content, list)
        if not is_there:
            return place[: length + 1] if field_at(model, place[: length + 1]) else place[:length]
        content = value_at(content, (key,))
    return place


def _stand_in(kind: Any) -> Any:
    """Return a value of a type that later checks accept and do not mention."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: _stand_in(field.annotation) for key, field in kind.model_fields.items() if field.is_required()}
    if get_origin(kind) is dict:
        return {MISSING: _stand_in(get_args(kind)[1])}
    if get_origin(kind) is list:
        return []
    choices = [choice for choice in get_args(kind) if isinstance(choice, str)]
    return choices[0] if choices else MISSING
