"""Python's garbage collection thresholds."""

import gc


def raise_gc_thresholds() -> None:
    """Raise the GC thresholds: most objects live until exit, and each collection would traverse them all."""
    gc.set_threshold(100_000, 50, 100)
