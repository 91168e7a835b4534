"""Overlays: the packed file of what each task adds to the shared model; written, read, and put back together."""

from merganser.overlays.files import FILE, OverlayFile, OverlayWriter, open_overlays, task_model, write_task_model
from merganser.overlays.parts import Dense, LowRank, Part, Parts

__all__ = [
    "FILE",
    "Dense",
    "LowRank",
    "OverlayFile",
    "OverlayWriter",
    "Part",
    "Parts",
    "open_overlays",
    "task_model",
    "write_task_model",
]
