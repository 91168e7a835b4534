"""Merge models, measure merges, and read what was measured.

>>> import merganser
>>> "ties" in merganser.methods(data="none", parts="no")
True
"""

from typing import TYPE_CHECKING, Any

from merganser.errors import ExtraError, InputError

if TYPE_CHECKING:
    from merganser.api import evaluate, load, merge, methods, open_report

__all__ = ["ExtraError", "InputError", "evaluate", "load", "merge", "methods", "open_report"]


def __getattr__(name: str) -> Any:
    """Import the functions when they are first asked for: `import merganser` alone takes no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from merganser import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
