"""Use a library's internals while they exist (a fast path), and a slower function with its public API otherwise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import metadata
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class FastPaths:
    """The fast paths through one library, which are switched off when one of its internals is missing."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._off: dict[str, str] = {}
        self._say: Callable[[str], object] | None = None

    @property
    def version(self) -> str:
        """The library and its installed version, for messages."""
        return f"{self._library} {metadata.version(self._library.lower())}"

    def report(self, say: Callable[[str], object]) -> None:
        """Call `say` for each that is switched off, now and later."""
        for line in self._off.values():
            say(line)
        self._say = say

    def otherwise(self, what: str, slow: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Call `slow` instead of a fast path if an internal is missing or takes other arguments: `what` is slower."""

        def decorate(fast: Callable[P, R]) -> Callable[P, R]:
            @wraps(fast)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                if what not in self._off:
                    try:
                        return fast(*args, **kwargs)
                    except (ImportError, AttributeError, TypeError) as error:
                        self._switch_off(what, error)
                return slow(*args, **kwargs)

            return call

        return decorate

    def _switch_off(self, what: str, error: Exception) -> None:
        if what not in self._off:
            line = f"{self.version} has other internals ({error}): using its public calls, {what} is slower"
            self._off[what] = line
            if self._say:
                self._say(line)


def no_shortcut() -> AbstractContextManager[None]:
    """Replace nothing in the block."""
    return nullcontext()


@contextmanager
def replaced(owner: Any, name: str, shortcut: Any) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object in the block."""
    is_own, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, shortcut)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
