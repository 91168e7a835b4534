"""The registry: every module of `merganser/methods/` holds one method, found by its file name.

Besides, there are methods of a comparison's own, and of installed packages (`merganser.plugins`).
"""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, TypeAlias

from merganser.errors import InputError, did_you_mean
from merganser.merging.about import REGISTERED, Description
from merganser.merging.declared import listed
from merganser.methods import __path__ as places
from merganser.plugins import OwnMethod, is_trusted, module_names, own_methods

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
    try:
        if own.of_comparison:
            spec = spec_from_file_location(own.module, own.file)
            assert spec
            assert spec.loader
            sys.modules[own.module] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            importlib.import_module(own.module)
    except (Exception, SystemExit) as error:  # whatever the code of somebody else raises
        sys.modules.pop(own.module, None)
        raise InputError(f"{own.file}: cannot be imported: {type(error).__name__}: {error}") from error
    if name not in REGISTERED:
        raise InputError(f"{own.file}: has no function {name} decorated with @method")


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
