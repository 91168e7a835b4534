"""How often Python looks for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raised_gc_thresholds() -> Iterator[None]:
    """Look for garbage seldom: nearly all that is made stays until the end, and is looked through each time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
