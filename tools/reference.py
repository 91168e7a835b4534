"""The pages that are written from the code when the docs' site is built: commands, keys of params.yaml, functions.

They are made of the help texts, the models that check the file and the docstrings, so they cannot be out of date.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

import merganser
import merganser.api
from merganser.config.describing import default_words, sections_of, type_words
from merganser.config.params import Params
from merganser.evaluation import get_kind, kind_names
from merganser.registry import get_learner, learner_names


def commands_page(app: typer.Typer) -> str:
    """Return a Markdown page with every command of a command line: what it does, its arguments and options."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="merganser", title="Commands")


def keys_page(model: type[BaseModel] = Params) -> str:
    """Return a Markdown page with every key of params.yaml: its type, bounds and default, section by section."""
    found = list(sections_of("", model))
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


def _section(path: str, model: type[BaseModel]) -> str:
    rows = [
        f"| `{key}` | {_cell(type_words(field.annotation, field.metadata))} | {default_words(field)} |"
        for key, field in model.model_fields.items()
    ]
    table = "\n".join(["| key | what it holds | default |", "| --- | --- | --- |", *rows]) if rows else ""
    heading = f"## {path}" if path else "## The whole file"
    return "\n\n".join(filter(None, [heading, inspect.cleandoc(model.__doc__ or ""), table]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
