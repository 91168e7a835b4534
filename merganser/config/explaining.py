"""Say in one line what pydantic found wrong in `params.yaml`: where, what was expected, and what it got."""

import io
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from merganser.errors import did_you_mean

NEEDED = ("tasks", "methods")
KeyPath = tuple[str | int, ...]


def mistakes_in(content: Any, model: type[BaseModel], above: KeyPath = (), beside: tuple[str, ...] = ()) -> list[str]:
    """List what keeps content from being a model's, each with its place; nothing where it is right.

    `above`: where in the file the model stands; `beside`: keys that may stand there and are not the model's.
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        return [_explain(each, model, above, beside) for each in error.errors() if "[key]" not in each["loc"]]
    return []


def _explain(mistake: Any, model: type[BaseModel], above: KeyPath, beside: tuple[str, ...]) -> str:
    place, kind, got = mistake["loc"], mistake["type"], mistake["input"]
    where = ".".join(str(part) for part in (*above, *place))
    if kind == "extra_forbidden":
        known = [*(beside if len(place) == 1 else ()), *_keys_at(model, place[:-1])]
        return f"{where}: unknown key{did_you_mean(str(place[-1]), known)}"
    if kind == "missing":
        example = _example_at(model, place)
        expected = f"expected {', '.join(_keys_at(model, place[:-1]))}" if example is None else f"for example {example}"
        return f"{where}: missing; {expected}"
    if kind == "too_short" or (got is None and where in NEEDED):
        return f"{where}: there are none; declare at least one"
    if kind in ("dict_type", "model_type"):
        none = "; leave it out for none" if got is None and _may_be_left_out(model, place) else ""
        return f"{where}: expected a mapping, got {shown(got)}{none}"
    if kind == "string_pattern_mismatch":
        return f"{where}: must have {{}} once, where the class name goes, and no other brace, got {shown(got)}"
    if kind == "value_error":  # of a check of the model's own, which names the key
        return ": ".join(filter(None, (where, str(mistake["ctx"]["error"]))))
    near = did_you_mean(str(got)[:200], re.findall("'(.+?)'", mistake["msg"]))
    return f"{where}: {mistake['msg']}, got {shown(got)}{near}"


def shown(value: Any) -> str:
    """Show a value as it stands in the file, the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _example_at(model: type[BaseModel], place: KeyPath) -> str | None:
    """Return a line of the file that gives what is missing at a place, and what it is; None without an example."""
    key = str(place[-1])
    field = getattr(_kind_at(model, place[:-1]), "model_fields", {}).get(key)
    value = None if field is None else _example(field)
    if field is None or value is None:
        return None
    example = as_line(key, value)
    return f"{example}, {field.description}" if field.description else example


def as_line(key: str, value: Any) -> str:
    """Return a key and its value as a line of the file.

    >>> as_line("evaluation", {"split": "test", "batch_size": 64})
    'evaluation: {split: test, batch_size: 64}'
    """
    return as_flow({key: value})[1:-1]  # without the braces around the one key


def as_flow(value: Mapping[str, Any]) -> str:
    """Return a mapping on one line, in braces."""
    yaml, line = YAML(), io.StringIO()
    yaml.default_flow_style, yaml.width = True, 10_000
    yaml.dump(dict(value), line)
    return line.getvalue().strip()


def _example(field: FieldInfo) -> Any:
    """Return a field's stated example; else the first of its choices, or its type with the required keys only."""
    kind = field.annotation
    if field.examples:
        return field.examples[0]
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: _example(inner) for key, inner in kind.model_fields.items() if inner.is_required()}
    return None


def _may_be_left_out(model: type[BaseModel], place: KeyPath) -> bool:
    kind = _kind_at(model, place[:-1])
    return hasattr(kind, "model_fields") and not kind.model_fields[place[-1]].is_required()


def _keys_at(model: type[BaseModel], place: KeyPath) -> list[str]:
    """List the keys of the section at a place in the model."""
    kind = _kind_at(model, place)
    return list(getattr(kind, "model_fields", []))


def _kind_at(model: type[BaseModel], place: KeyPath) -> Any:
    """Return the type of what stands at a place in the model."""
    kind: Any = model
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    return kind
