"""Overlays: the packed file of what each task adds to the shared model; written, read, and applied."""

from merganser.overlays.files import (
    OverlayFile,
    mixed_model,
    open_overlays,
    task_model,
    task_parameters,
    write_task_model,
)
from merganser.overlays.parts import Dense, LowRank, Part, Parts
from merganser.overlays.writer import FILE, UNIFIED, OverlayWriter

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
