"""Plug-ins found by their file names: the modules of a folder, and the constants at the top of each.

Methods may also be files of a comparison's folder `methods/`, or modules of installed packages, which name them as
entry points of the group `merganser.methods`.
"""

import ast
import hashlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from threading import Lock
from typing import Any

from merganser.errors import ExtraError, InputError, refusing
from merganser.extras import naming_extras

COMPARISON, METHODS = Path(".merganser"), Path("methods")  # in a comparison's repository
GROUP = "merganser.methods"  # of entry points
_trusted: set[Path] = set()
_parsing = Lock()  # Python 3.11 counts how deep a syntax tree is in all threads together, and fails where two parse
FAMILIES, KINDS, STATISTICS = "models.families", "evaluation.kinds", "statistics.kinds"  # packages of this one
ADDITIONS = "at_run_time.additions"


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


@dataclass(frozen=True)
class OwnMethod:
    """A method that is not Merganser's own: its module, its file, and whether a comparison's folder has that."""

    module: str
    file: Path
    of_comparison: bool


def own_methods() -> dict[str, OwnMethod]:
    """Return the methods of the comparison in the current folder, and of installed packages, by their names.

    Raises InputError where a file cannot be one, and where two have one name.
    """
    methods: dict[str, OwnMethod] = {}
    for name, own in [*_installed_methods(), *_methods_here()]:
        if (other := methods.setdefault(name, own)) != own:
            raise InputError(f"{own.file}: {other.file} also has a method {name}; rename or remove one of them")
    return methods


def _methods_here() -> Iterator[tuple[str, OwnMethod]]:
    for file in sorted(METHODS.glob("[!_.]*.py")) if COMPARISON.is_dir() else []:
        if not file.stem.isidentifier():
            raise InputError(f"{file}: not the name of a function; call it as its method, without dashes and spaces")
        if not file.is_file():
            raise InputError(f"{file}: not a file, or a link to none; a method is a file")
        yield file.stem, OwnMethod(f"{GROUP}.{file.stem}", file.absolute(), of_comparison=True)


def trust_own_methods() -> None:
    """Let this process run the methods in the comparison's folder, as a run and its stages do."""
    _trusted.add(METHODS)


def is_trusted(file: Path) -> bool:
    """Tell whether this process may run a method in the comparison's folder: in a run, or if a run here ran the file.

    What ran is known by its sha256 in the user's folder of state: a comparison from somebody else cannot say it.
    """
    known = _state_folder() / hashlib.sha256(file.read_bytes()).hexdigest()
    if METHODS in _trusted:
        with suppress(OSError):  # without a home all commands but runs refuse the file
            known.parent.mkdir(parents=True, exist_ok=True)
            known.touch()
    return METHODS in _trusted or known.is_file()


def _state_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "merganser/methods"


@cache
def _installed_methods() -> tuple[tuple[str, OwnMethod], ...]:
    installed = []
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist else point.module.partition(".")[0]
        with refusing(
            f"method {point.name}: the installed package {package} names its module {point.module}, which cannot be "
            "imported",
            f"reinstall {package}, or remove it: pip uninstall {package}",
            (ImportError, ValueError),
        ):
            spec = find_spec(point.module)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {point.module!r}")
        if spec.origin:
            installed.append((point.name, OwnMethod(point.module, Path(spec.origin), of_comparison=False)))
    return tuple(installed)


def constants(package: str, name: Any) -> dict[str, Any]:
    """Return what a module of a package writes out for names in capitals; nothing where there is no such module.

    It is read and not imported: the libraries that it needs take seconds.
    """
    places = places_of(package)
    paths = [Path(place, f"{name}.py") for place in places] if name in module_names(places) else []
    path = next((path for path in paths if path.is_file()), None)
    return dict(_written_out(path.read_bytes(), path)) if path else {}


@cache
def _written_out(source: bytes, file: Path) -> dict[str, Any]:
    return literals(parsed(file, source))


def load(package: str, name: str, protocol: type) -> Any:
    """Import a module of a package of this one, found by its name.

    Raises InputError where its import fails, or it lacks what the protocol of its kind lists; ExtraError for a library
    that an extra brings.
    """
    file = f"merganser/{package.replace('.', '/')}/{name}.py"
    try:
        with naming_extras():
            module = import_module(f"merganser.{package}.{name}")
    except (InputError, ExtraError):
        raise
    except (Exception, SystemExit) as error:  # whatever the code of somebody else raises
        raise InputError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from error
    listed = [*protocol.__annotations__, *(each for each, value in vars(protocol).items() if isfunction(value))]
    if lacking := [each for each in listed if not each.startswith("_") and not hasattr(module, each)]:
        raise InputError(
            f"{file}: lacks {', '.join(lacking)}; write what {protocol.__name__} in {protocol.__module__} says"
        )
    return module


def parsed(path: Path, content: bytes) -> ast.Module:
    """Parse a module; raise InputError where it is not Python."""
    try:
        with _parsing:
            return ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: not Python: {error}") from error


def own_configurations() -> dict[str, str]:
    """Return the files of the families whose configuration is another than config.json, by their names."""
    return dict(_own_configurations(tuple(places_of(FAMILIES))))


@cache
def _own_configurations(places: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    files = {name: constants(FAMILIES, name).get("CONFIG") for name in module_names(places)}
    return tuple((name, file) for name, file in files.items() if file is not None)


def literals(module: ast.Module) -> dict[str, Any]:
    """Return the values that a parsed module writes out for names in capitals at its top.

    >>> literals(ast.parse("MERGED = ['visual.*']; TYPES = {*found()}; it = 1"))
    {'MERGED': ['visual.*']}
    """
    constants_read = {}
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name.isupper():
                try:
                    constants_read[name] = ast.literal_eval(value)
                except ValueError:  # computed: only who imports the module knows it
                    continue
    return constants_read
