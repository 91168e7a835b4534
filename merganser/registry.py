"""The registry: every module of `merganser/methods/` holds one method, found by its file name.

Besides, there are methods of a comparison's own, and of installed packages (`merganser.plugins`).
"""

import ast
import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.errors import InputError, did_you_mean
from merganser.merging.about import REGISTERED, Description
from merganser.merging.declared import listed
from merganser.methods import __path__ as places
from merganser.plugins import GROUP, OwnMethod, is_trusted, module_names, own_methods

if TYPE_CHECKING:
    from merganser.learning import Learner
    from merganser.merging.method import Method

Described: TypeAlias = "Description | Method"  # both have what describes a method


class UntrustedMethodError(InputError):
    """Report a method in a file of the comparison, whose code only a run may run first."""


def names() -> list[str]:
    """List the methods; raise InputError where one of the comparison's own has the name of one of Merganser's."""
    shipped, own = module_names(places), own_methods()
    for name in shipped:
        if name in own:
            raise InputError(f"{own[name].file}: Merganser has a method called {name}; give yours another name")
    return sorted([*shipped, *own])


def get(name: str) -> "Method":
    """Return a method; raise InputError with the nearest name when there is none of this one."""
    if name not in REGISTERED:
        known = names()
        if name not in known:
            raise InputError(f'unknown method "{name}"{did_you_mean(name, known)}; `merganser methods` lists them')
        if own := own_methods().get(name):
            _import(name, own)
        else:
            importlib.import_module(f"merganser.methods.{name}")
    method: Method = REGISTERED[name]
    return method


def describe(name: str) -> Described:
    """Return what is told of a method; one of Merganser's is read from its file, without importing torch."""
    if name in REGISTERED or name in own_methods() or name not in module_names(places):
        return get(name)
    return listed(name)


def _import(name: str, own: OwnMethod) -> None:
    """Import a method that is not Merganser's own; raise InputError where its file has no method of this name."""
    if own.of_comparison and not is_trusted(own.file):
        raise UntrustedMethodError(
            f"{own.file}: code of this comparison that has not been run on this machine; `merganser run` runs it"
        )
    registered, state = dict(REGISTERED), _state()
    try:
        if own.of_comparison:
            _check_alone(own.file)
            spec = spec_from_file_location(own.module, own.file)
            assert spec
            assert spec.loader
            sys.modules[own.module] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            importlib.import_module(own.module)
        _check_registered(name, registered)
        if changed := [what for what, value in _state().items() if value != state[what]]:
            raise InputError(f"its import changes {' and '.join(changed)}, for other entries too; leave that as it is")
    except (Exception, SystemExit) as error:  # whatever the code of somebody else raises
        sys.modules.pop(own.module, None)
        REGISTERED.clear()
        REGISTERED.update(registered)
        reason = "" if isinstance(error, InputError) else f"cannot be imported: {type(error).__name__}: "
        raise InputError(f"{own.file}: {reason}{error}") from error


def _check_alone(file: Path) -> None:
    """Raise InputError if a comparison's method imports a neighbouring module: results would not follow its changes."""
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
        for module in named:
            spec = PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd())])
            if spec and spec.origin:
                said = f"imports {spec.origin}, whose changes no result would follow"
                raise InputError(f"{said}; write the method as one file, or install both as a package")


def _check_registered(name: str, before: Mapping[str, Any]) -> None:
    """Raise InputError where an import gave no method of this name, or one whose name is another module's."""
    if name not in REGISTERED:
        raise InputError(f"has no function {name} decorated with @method")
    own = own_methods()
    for other in [each for each, made in REGISTERED.items() if made is not before.get(each)]:
        module, home = REGISTERED[other].function.__module__, own.get(other)
        package = home and not home.of_comparison and home.module.partition(".")[0] == module.partition(".")[0]
        if not package and module != (home.module if home else f"{GROUP}.{other}"):
            raise InputError(f"also has a method {other}; each is found by its file or entry point")
    assert REGISTERED[name].parameters  # a model of the types in its signature


def _state() -> dict[str, Any]:
    """Return what all code of a process shares and a method's must not change: stages of other entries import it."""
    import torch

    return {
        "the working folder": Path.cwd(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's precision of products": torch.get_float32_matmul_precision(),
    }


def learner_names() -> list[str]:
    """List the methods whose values are learned."""
    return [name for name in module_names(places) if get(name).learner]


def get_learner(name: str) -> "Learner":
    """Return how a method's values are learned; raise InputError with the nearest name where none is of this one."""
    learner = get(name).learner if name in names() else None
    if learner is None:
        known = learner_names()
        raise InputError(f"{name!r} is not a learner; known: {', '.join(known)}{did_you_mean(name, known)}")
    return learner
