"""A project whose metrics may move by a hundredth, for reruns with other parameters."""

from typing import Any

from dvcfleet.lineage.hooks import LineageHooks
from dvcfleet.project import Project


class Tolerant(LineageHooks, Project):
    """The hooks of a repository whose metric `speed` is not compared, and whose other numbers may move a little."""

    def tolerance(self, path: str, content: Any, place: tuple[str, ...]) -> float | None:
        return None if place == ("speed",) else 0.01


TOLERANT = Tolerant()
