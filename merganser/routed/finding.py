"""How a merge is evaluated without the task's label, by the files that it has."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from merganser.inputs.heads import Head
from merganser.models import Network
from merganser.routed import BLOCK_ROUTERS, GATES, ROUTER
from merganser.routed.blocks import blended
from merganser.routed.experts import routed
from merganser.routed.gates import gated


class Seen(Protocol):
    """What a router made of what it was given."""

    def accuracy(self, task: str) -> float:
        """Return the share that was given to a task."""


WithoutLabel = Callable[[Network, Path, Head], AbstractContextManager[Seen]]


def router_of(merged: Path) -> WithoutLabel | None:
    """Return what routes the inputs of a network as a merged model's folder says; None for a merge without a router."""
    ways: dict[str, WithoutLabel] = {ROUTER: routed, GATES: gated, BLOCK_ROUTERS: blended}
    return next((way for file, way in ways.items() if (merged / file).is_file()), None)
