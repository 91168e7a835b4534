"""Python's garbage collection thresholds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raised_gc_thresholds() -> Iterator[None]:
    """Raise the GC thresholds: most objects live until exit, and each collection would traverse them all."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
