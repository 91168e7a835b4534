"""Plug-ins found by their file names: the modules of a folder, and the constants at the top of each."""

import ast
import pkgutil
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

FAMILIES, KINDS, STATISTICS = "models.families", "evaluation.kinds", "statistics.kinds"  # packages of this one


def module_names(places: Iterable[str]) -> list[str]:
    """List the modules in a package's folders, sorted, as they were when this process first asked.

    `places`: the package's `__path__`.
    """
    return list(_names(tuple(places)))


@cache
def _names(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(places)))


def places_of(package: str) -> list[str]:
    """Return a package's folders, without importing it."""
    imported = sys.modules.get(f"merganser.{package}")
    return list(imported.__path__) if imported else [str(Path(__file__).parent.joinpath(*package.split(".")))]


def constants(package: str, name: Any) -> dict[str, Any]:
    """Return what a module of a package writes out for names in capitals; nothing where there is no such module.

    It is read and not imported: the libraries that it needs take seconds.
    """
    places = places_of(package)
    paths = [Path(place, f"{name}.py") for place in places] if name in module_names(places) else []
    path = next((path for path in paths if path.is_file()), None)
    return dict(_written_out(path.read_bytes(), str(path))) if path else {}


@cache
def _written_out(source: bytes, file: str) -> dict[str, Any]:
    return literals(ast.parse(source, file))


def own_configurations() -> dict[str, str]:
    """Return the files of the families whose configuration is another than config.json, by their names."""
    return dict(_own_configurations(tuple(places_of(FAMILIES))))


@cache
def _own_configurations(places: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = {name: constants(FAMILIES, name).get("CONFIG") for name in module_names(places)}
    return tuple((name, file) for name, file in found.items() if file is not None)


def literals(module: ast.Module) -> dict[str, Any]:
    """Return the values that a parsed module writes out for names in capitals at its top.

    >>> literals(ast.parse("MERGED = ['visual.*']; TYPES = {*found()}; it = 1"))
    {'MERGED': ['visual.*']}
    """
    found = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError:  # computed: only who imports the module knows it
                    continue
    return found
