"""Read methods from the text of their files, without importing them: importing torch takes seconds."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

from merganser.merging.about import About, Description, follows, needs_of
from merganser.merging.parameters import parameter_model
from merganser.plugins import ADDITIONS, constants

HERE = Path(__file__).parents[1]
OWN = "merganser."  # modules whose text is read, unless they were imported; others are imported
LISTED = {*About.__dataclass_fields__, "reads", "cost", "statistics", "embeddings", "joint", "weighted"} - {"searched"}
PRESENT = ("learner", "at_run_time")  # declarations that are objects: only whether they are there


class Definitions:
    """The names that a module's text defines; each is evaluated on first use."""

    def __init__(self, name: str) -> None:
        """Read the module's file."""
        place = HERE.joinpath(*name.split(".")[1:])  # to ask for its spec imports the packages around it
        self.tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_bytes())
        self._defined = dict(_definitions(self.tree))

    def __getitem__(self, name: str) -> Any:
        """Return what a name stands for; raise KeyError where the text does not say it."""
        node = self._defined[name]
        if isinstance(node, ast.expr):
            return self.value(node)
        module, source = node
        if module.startswith(OWN) and module not in sys.modules:
            return definitions_of(module)[source]
        return getattr(import_module(module), source)

    def value(self, expression: ast.expr) -> Any:
        """Evaluate an expression at the top level of the module."""
        names: Any = self
        return eval(compile(ast.Expression(expression), "<a method's declaration>", "eval"), {}, names)


@cache
def definitions_of(module: str) -> Definitions:
    """Parse one of Merganser's modules."""
    return Definitions(module)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.expr | tuple[str, str]]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from ((each.asname or each.name, (module, each.name)) for each in names)


@cache
def listed(name: str) -> Description:
    """Return one of Merganser's methods as its file describes it.

    Raises NameError if the type of a parameter cannot be read from the text alone.
    """
    module = definitions_of(f"merganser.methods.{name}")
    function = next(node for node in module.tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    (call,) = (each for each in function.decorator_list if isinstance(each, ast.Call))
    given = {str(word.arg): word.value for word in call.keywords}
    facts: dict[str, Any] = {key: ast.literal_eval(node) for key, node in given.items() if key in LISTED}
    facts |= {key: key in given for key in PRESENT}
    named = {each.id for node in _annotations(function) for each in ast.walk(node) if isinstance(each, ast.Name)}
    facts |= follows(facts, named)
    addition = ast.unparse(given["at_run_time"]) if "at_run_time" in given else None
    trained = constants(ADDITIONS, addition).get("TRAINED")
    keywords = {
        each.arg: (module.value(each.annotation), ... if default is None else module.value(default))
        for each, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if each.annotation
    }
    return Description(
        name=name,
        doc=cleandoc(ast.get_docstring(function) or ""),
        trained=trained,
        one_model=not facts["overlay"] and addition is None,
        needs=needs_of(facts, trained),
        parameters=parameter_model(name, keywords, facts["weighted"]),
        **{key: value for key, value in facts.items() if key in Description.__dataclass_fields__},
    )


def _annotations(function: ast.FunctionDef) -> list[ast.expr]:
    every = [each.annotation for each in (*function.args.args, *function.args.kwonlyargs)]
    return [node for node in (*every, function.returns) if node]
