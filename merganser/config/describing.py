"""Explain the keys of `params.yaml` in words, and as a JSON Schema, both from the models that check the file."""

import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from merganser.config.params import Params
from merganser.errors import InputError, did_you_mean

SCHEMA_FILE = Path("params.schema.json")  # beside a params.yaml whose first line names it, for editors
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
# Keys that the checks before a run write into the file where they are left out: docs/params.md.
_FOLLOW = {
    "Base": ("family",),
    **dict.fromkeys(("Entry", "StudyEntry", "Sweep", "Ablation"), ("method", "reads")),
    **dict.fromkeys(("LearnedEntry", "Search"), ("of",)),
}
_NAME = "NAME"  # in the place of a name that the user chooses


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema of the file as people write it, without keys that can be inferred."""
    schema: dict[str, Any] = Params.model_json_schema()
    for name, keys in _FOLLOW.items():
        part = schema["$defs"][name]
        part["required"] = [key for key in part.get("required", []) if key not in keys]
    entry = schema["properties"]["methods"]["additionalProperties"]
    schema["properties"]["methods"]["additionalProperties"] = {"anyOf": [entry, {"type": "null"}]}  # `average:`
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "params.yaml of Merganser"} | {
        key: value for key, value in schema.items() if key != "title"
    }


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    return json.dumps(json_schema(), indent=2) + "\n"


def key_lines(key: str) -> list[str]:
    """Explain a key by its dotted path, the whole file if it is empty; raise InputError for an unknown key.

    Names that the user chooses appear in the path as they are, or as NAME.
    """
    kind: Any = Params
    section, field, words = None, None, ""
    parts = key.split(".") if key else []
    for number, part in enumerate(parts):
        path = ".".join(parts[: number + 1])
        if _is_model(kind):
            known = kind.model_fields
            if part not in known and kind.model_config.get("extra") == "allow":
                return [f"{path}: a key of its method, learner or kind of task: `merganser methods` and docs/kinds.md"]
            if part not in known:
                there = f"there are {', '.join(known)}" if known else "there are no keys"
                raise InputError(f"{path}: no such key of params.yaml; {there}{did_you_mean(part, known)}")
            section, field = kind, known[part]
            kind, words = _inner(field.annotation), type_words(field.annotation, field.metadata)
        elif get_origin(kind) is dict:
            field, kind = None, _inner(get_args(kind)[1])
            words = type_words(kind)
        else:
            raise InputError(f"{path}: {'.'.join(parts[:number])} has no keys; it is {words}")
    return list(_explained(key, kind, section, field, words))


def _explained(key: str, kind: Any, section: Any, field: FieldInfo | None, words: str) -> Iterator[str]:
    if key:
        yield f"{key}: {words}"
    if field is not None:
        default, name = default_words(field), key.rpartition(".")[2]
        about = [f"default: {default}"] if default and not field.is_required() else [default] if default else []
        about += [f"example: {field.examples[0]}"] if field.examples and not field.is_required() else []
        about += [said] if (said := _sentence_about(section, name)) else []
        about += [field.description] if field.description else []
        yield from (f"  {line}" for line in about)
    if get_origin(kind) is dict:
        key, kind = f"{key}.{_NAME}", _inner(get_args(kind)[1])
    if _is_model(kind):
        yield from ["", inspect.cleandoc(kind.__doc__ or ""), ""]
        width = max((len(name) for name in kind.model_fields), default=0)
        for name, each in kind.model_fields.items():
            default = default_words(each)
            shown = f" ({default})" if default else ""
            yield f"  {name:{width}}  {type_words(each.annotation, each.metadata)}{shown}"


def _sentence_about(section: type[BaseModel], key: str) -> str:
    """Return the sentence of a section's docstring about a key; empty if it has none."""
    text = " ".join((section.__doc__ or "").split())
    match = re.search(rf"`{re.escape(key)}`: (.*?)(?= `\w+`: |$)", text)
    return match[1] if match else ""


def _inner(annotation: Any) -> Any:
    """Return the type of an optional key's value: the section in a union, or else its first type."""
    if get_origin(annotation) is Annotated:
        return _inner(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        several = [_inner(each) for each in get_args(annotation) if each is not type(None)]
        return next((each for each in several if _is_model(each)), several[0])
    return annotation


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def sections_of(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the file's sections in order, each with the dotted path of its keys."""
    yield path, model
    for key, field in model.model_fields.items():
        below = f"{path}.{key}" if path else key
        for inner, named in _models(field.annotation):
            yield from sections_of(f"{below}.{_NAME}" if named else below, inner)


def _models(annotation: Any, named: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    if _is_model(annotation):
        yield annotation, named
    origin = get_origin(annotation)
    for argument in get_args(annotation):
        yield from _models(argument, named or origin is dict)


def default_words(field: FieldInfo) -> str:
    """Return a key's default in words, or `required`; empty if the default is empty."""
    if field.is_required():
        return f"required, such as `{field.examples[0]}`" if field.examples else "required"
    default = field.default if field.default is not PydanticUndefined else field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "as below"
    return "" if default in ({}, [], None) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def type_words(annotation: Any, metadata: Any = ()) -> str:
    """Describe a type in words: choices, bounds, items of a map or list."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(inner[0], inner[1:])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(each) for each in inner if each is not type(None))
    if origin is dict:
        return f"map of names to {type_words(inner[1])}"
    if origin is list:
        return f"list of {type_words(inner[0])}"
    if _is_model(annotation):
        return "section"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(annotation, "any value")
    return " ".join([words, *_bounds(metadata)])


def _bounds(metadata: Any) -> list[str]:
    constraints = [each for part in metadata for each in (part.metadata if isinstance(part, FieldInfo) else [part])]
    return [
        f"{sign} {getattr(each, name)}" for each in constraints for name, sign in _BOUNDS.items() if hasattr(each, name)
    ]
