"""Use a library's internals while they exist, and its public API otherwise.

A fast path is a function that uses internals of a library; a slower function that uses its public API replaces it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module, metadata
from operator import attrgetter
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class FastPaths:
    """The fast paths through one library: by name, the internals that each needs, and what is slower without them.

    An internal is `module:attribute`, or `name:attribute` of an object that is passed to `check` under this name.
    """

    def __init__(self, library: str, paths: Mapping[str, tuple[tuple[str, ...], str]]) -> None:
        self.paths = dict(paths)
        self._library = library
        self._off: dict[str, str] = {}
        self._say: Callable[[str], object] | None = None

    @property
    def version(self) -> str:
        """The library and its installed version, for messages."""
        return f"{self._library} {metadata.version(self._library.lower())}"

    def check(self, say: Callable[[str], object], **opened: Any) -> None:
        """Switch off the fast paths whose internals are missing; call `say` for each, also for those found later."""
        self._say = None
        for name, (internals, _) in self.paths.items():
            for internal in missing(internals, opened):
                self._switch_off(name, f"no {internal}")
        for line in self._off.values():
            say(line)
        self._say = say

    def otherwise(self, name: str, slow: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Call `slow` instead of a fast path if an internal is missing or takes other arguments."""

        def decorate(fast: Callable[P, R]) -> Callable[P, R]:
            @wraps(fast)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                if name not in self._off:
                    try:
                        return fast(*args, **kwargs)
                    except (ImportError, AttributeError, TypeError) as error:
                        self._switch_off(name, f"other internals ({error})")
                return slow(*args, **kwargs)

            return call

        return decorate

    def _switch_off(self, name: str, has: str) -> None:
        if name in self._off:
            return
        self._off[name] = f"{self.version} has {has}: using its public calls, {self.paths[name][1]} is slower"
        if self._say:
            self._say(self._off[name])


def missing(internals: Iterable[str], opened: Mapping[str, Any]) -> Iterator[str]:
    """Find the missing internals; those of an object given as None are not checked."""
    for internal in internals:
        where, _, path = internal.partition(":")
        if where in opened and opened[where] is None:
            continue
        try:
            attrgetter(path)(opened[where] if where in opened else import_module(where))
        except (ImportError, AttributeError):
            yield f"{where}.{path}"


def no_shortcut() -> AbstractContextManager[None]:
    """Replace nothing within the block."""
    return nullcontext()


@contextmanager
def replaced(owner: ModuleType | type, name: str, shortcut: Any) -> Iterator[None]:
    """Put another object in the place of a module's or a class's within the block."""
    before = vars(owner)[name]
    setattr(owner, name, shortcut)
    try:
        yield
    finally:
        setattr(owner, name, before)
