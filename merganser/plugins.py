"""What is found by its file name: the modules of a folder, one thing each."""

import pkgutil
from collections.abc import Iterable
from functools import cache


def module_names(places: Iterable[str]) -> list[str]:
    """List the modules in a package's folders, sorted, as they were when this process first asked.

    `places`: the package's `__path__`.
    """
    return list(_names(tuple(places)))


@cache
def _names(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(places)))
