"""The pages that are written from the code when the docs' site is built: commands, keys of params.yaml, functions.

They are made of the help texts, the models that check the file and the docstrings, so they cannot be out of date.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

import merganser
import merganser.api
from merganser.config.params import Params
from merganser.evaluation import get_kind, kind_names
from merganser.registry import get_learner, learner_names

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def commands_page(app: typer.Typer) -> str:
    """Return a Markdown page with every command of a command line: what it does, its arguments and options."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="merganser", title="Commands")


def keys_page(model: type[BaseModel] = Params) -> str:
    """Return a Markdown page with every key of params.yaml: its type, bounds and default, section by section."""
    found = list(_sections("", model))
    found += [(f"tasks.NAME.data, {name}", get_kind(name).Settings) for name in kind_names()]
    found += [(f"learned.NAME, {name}", get_learner(name).settings) for name in learner_names()]
    parts = [
        "# Keys of params.yaml",
        "Every key, as the checks before a run know them; [params.yaml](params.md) explains them. You choose NAME.",
    ]
    return "\n\n".join([*parts, *(_section(path, part) for path, part in found)]) + "\n"


def functions_page(package: ModuleType = merganser) -> str:
    """Return a Markdown page with every public name of a package: its signature and what its docstring says."""
    parts = ["# Reference of `import merganser`", "Every public name; [from Python](python.md) is a tour."]
    return "\n\n".join([*parts, *(_public(package, name) for name in package.__all__)]) + "\n"


def _public(package: ModuleType, name: str) -> str:
    found, place = getattr(package, name), f"{package.__name__}.{name}"
    about = inspect.getdoc(found) or ""
    if inspect.isclass(found):
        bases = ", ".join(base.__name__ for base in found.__bases__)
        return f"## {place}\n\n```python\nclass {name}({bases})\n```\n\n{about}"
    # a package that can be called is documented by what it calls
    function = found if inspect.isfunction(found) else getattr(merganser.api, name)
    return f"## {place}\n\n```python\n{_signature(place, function)}\n```\n\n{inspect.getdoc(function)}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Write a function's signature with one parameter a line."""
    signature, lines, keywords = inspect.signature(function), [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            lines.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{stars}{parameter.name}: {_annotation(parameter.annotation)}{default}")
    body = "".join(f"    {line},\n" for line in lines)
    return f"{name}(\n{body}) -> {_annotation(signature.return_annotation)}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("collections.abc.", "").replace("typing.", "")


def _sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Give the file's sections in order, each with the dotted path of its keys."""
    yield path, model
    for key, field in model.model_fields.items():
        below = f"{path}.{key}" if path else key
        for inner, named in _models(field.annotation):
            yield from _sections(f"{below}.NAME" if named else below, inner)


def _models(annotation: Any, named: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation, named
    origin = get_origin(annotation)
    for argument in get_args(annotation):
        yield from _models(argument, named or origin is dict)


def _section(path: str, model: type[BaseModel]) -> str:
    rows = [
        f"| `{key}` | {_cell(_type(field.annotation, field.metadata))} | {_default(field)} |"
        for key, field in model.model_fields.items()
    ]
    table = "\n".join(["| key | what it holds | default |", "| --- | --- | --- |", *rows]) if rows else ""
    heading = f"## {path}" if path else "## The whole file"
    return "\n\n".join(filter(None, [heading, inspect.cleandoc(model.__doc__ or ""), table]))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return f"required, such as `{field.examples[0]}`" if field.examples else "required"
    default = field.default if field.default is not PydanticUndefined else field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "as below"
    return "" if default in ({}, [], None) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _type(annotation: Any, metadata: Any = ()) -> str:
    """Say a type in words: choices, bounds, what a map or a list holds."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0], inner[1:])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in inner if each is not type(None))
    if origin is dict:
        return f"map of names to {_type(inner[1])}"
    if origin is list:
        return f"list of {_type(inner[0])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "section"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(annotation, "any value")
    return " ".join([words, *_bounds(metadata)])


def _bounds(metadata: Any) -> list[str]:
    constraints = [each for part in metadata for each in (part.metadata if isinstance(part, FieldInfo) else [part])]
    return [
        f"{sign} {getattr(each, name)}" for each in constraints for name, sign in _BOUNDS.items() if hasattr(each, name)
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
