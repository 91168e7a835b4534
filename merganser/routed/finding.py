"""How a merge is evaluated without the task's label, by the files that it has."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from merganser.inputs.heads import Head
from merganser.models import Network
from merganser.routed import BLOCK_ROUTERS, GATES, ROUTER
from merganser.routed.blocks import blended
from merganser.routed.counting import Counts
from merganser.routed.experts import routed
from merganser.routed.gates import gated

WithoutLabel = Callable[[Network, Path, Head], AbstractContextManager[Counts]]


def router_of(merged: Path) -> WithoutLabel | None:
    """Return what routes the inputs of a network as a merged model's folder says; None for a merge without a router."""
    ways: dict[str, WithoutLabel] = {ROUTER: routed, GATES: gated, BLOCK_ROUTERS: blended}
    return next((way for file, way in ways.items() if (merged / file).is_file()), None)
