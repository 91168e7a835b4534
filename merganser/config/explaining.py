"""Say in one line what pydantic found wrong in `params.yaml`: where, what was expected, and what it got."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

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
        return f"{where}: expected a mapping, got {abbreviate(got)}{none}"
    if kind == "string_pattern_mismatch":
        return f"{where}: must have {{}} once, where the class name goes, and no other brace, got {abbreviate(got)}"
    if kind == "value_error":  # of a check of the model's own, which names the key
        return ": ".join(filter(None, (where, str(mistake["ctx"]["error"]))))
    near = did_you_mean(str(got)[:200], re.findall("'(.+?)'", mistake["msg"]))
    return f"{where}: {mistake['msg']}, got {abbreviate(got)}{near}"


def abbreviate(value: Any) -> str:
    """Show a value as it stands in the file, the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def with_line_numbers(mistakes: Iterable[str], text: str) -> Iterator[tuple[int | None, str]]:
    """Give each mistake with the line of a file's text at whose key it is, or of what that key would stand in."""
    root = YAML(typ="safe").compose(text) if text else None
    for mistake in mistakes:
        yield _line(root, mistake), mistake


def _line(node: Node | None, rest: str) -> int | None:
    """Return the line of the key that a text begins with, one of a mapping's within mappings."""
    line = None
    while isinstance(node, CollectionNode):
        is_list = not isinstance(node, MappingNode)
        pairs = [(str(i), item, item) for i, item in enumerate(node.value)] if is_list else []
        pairs = pairs or [(key.value, key, value) for key, value in node.value]
        fitting = [pair for pair in pairs if re.match(rf"{re.escape(pair[0])}(?=[.:,]|$)", rest)]
        if not fitting:
            break
        name, key, node = max(fitting, key=lambda pair: len(pair[0]))
        line, rest = key.start_mark.line + 1, rest[len(name) + 1 :]
    return line


def _example_at(model: type[BaseModel], place: KeyPath) -> str | None:
    """Return a line of the file that gives what is missing at a place, and what it is; None without an example."""
    key, field = str(place[-1]), field_at(model, place)
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
    field = field_at(model, place)
    return field is not None and not field.is_required()


def _keys_at(model: type[BaseModel], place: KeyPath) -> list[str]:
    """List the keys of the section at a place in the model."""
    kind = kind_at(model, place)
    return list(getattr(kind, "model_fields", []))


def field_at(model: type[BaseModel], place: KeyPath) -> FieldInfo | None:
    """Return the field of a model that a place in it is; None for a name in a map, and for a key that it has not."""
    found: FieldInfo | None = getattr(kind_at(model, place[:-1]), "model_fields", {}).get(place[-1])
    return found


def kind_at(model: type[BaseModel], place: KeyPath) -> Any:
    """Return the type of what stands at a place in the model; of one that may be left out, what it is else."""
    kind: Any = model
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        fields, parts = getattr(kind, "model_fields", None), get_args(kind)
        field = fields.get(part) if fields is not None else None
        kind = (parts[-1] if parts else Any) if fields is None else (field.annotation if field else Any)
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
    return kind
