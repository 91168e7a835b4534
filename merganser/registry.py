"""The registry: every module of `merganser/methods/` holds one method, found by its file name."""

import importlib

from merganser.errors import InputError, did_you_mean
from merganser.learning import Learner
from merganser.merging.method import REGISTERED, Method
from merganser.methods import __path__ as places
from merganser.plugins import module_names


def names() -> list[str]:
    """List the methods, by their files."""
    return module_names(places)


def get(name: str) -> Method:
    """Return a method; raise InputError with the nearest name when there is none of this one."""
    if name not in REGISTERED:
        if name not in names():
            raise InputError(f'unknown method "{name}"{did_you_mean(name, names())}; `merganser methods` lists them')
        importlib.import_module(f"merganser.methods.{name}")
    return REGISTERED[name]


def learner_names() -> list[str]:
    """List the methods whose values are learned."""
    return [name for name in names() if get(name).learner]


def get_learner(name: str) -> Learner:
    """Return how a method's values are learned; raise InputError with the nearest name where none is of this one."""
    learner = get(name).learner if name in names() else None
    if learner is None:
        known = learner_names()
        raise InputError(f"{name!r} is not a learner; known: {', '.join(known)}{did_you_mean(name, known)}")
    return learner
