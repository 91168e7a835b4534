"""One module a method. The package can be called, since it has the name of a function: `merganser.methods()`."""

import sys
from types import ModuleType
from typing import Any


class _Methods(ModuleType):
    def __call__(self, **chosen: str) -> Any:
        return sys.modules["merganser"].__getattr__("methods")(**chosen)  # without an import of `api` by stages


sys.modules[__name__].__class__ = _Methods
