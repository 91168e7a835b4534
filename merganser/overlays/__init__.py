"""Overlays: the packed file of what each task adds to the shared model; written, read, and applied."""

from merganser.overlays.files import (
    FILE,
    UNIFIED,
    OverlayFile,
    OverlayWriter,
    mixed_model,
    open_overlays,
    task_model,
    task_parameters,
    write_task_model,
)
from merganser.overlays.parts import Dense, LowRank, Part, Parts

__all__ = [
    "FILE",
    "UNIFIED",
    "Dense",
    "LowRank",
    "OverlayFile",
    "OverlayWriter",
    "Part",
    "Parts",
    "mixed_model",
    "open_overlays",
    "task_model",
    "task_parameters",
    "write_task_model",
]
