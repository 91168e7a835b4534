"""The registry: every module of `merganser/methods/` holds one method, found by its file name."""

import importlib
import pkgutil

from merganser.errors import InputError, did_you_mean
from merganser.merging.method import REGISTERED, Method
from merganser.methods import __path__ as places


def names() -> list[str]:
    """List the methods, by their files."""
    return sorted(module.name for module in pkgutil.iter_modules(places))


def get(name: str) -> Method:
    """Return a method; raise InputError with the nearest name when there is none of this one."""
    if name not in REGISTERED:
        if name not in names():
            raise InputError(f'unknown method "{name}"{did_you_mean(name, names())}; `merganser methods` lists them')
        importlib.import_module(f"merganser.methods.{name}")
    return REGISTERED[name]
