"""WEMoE (arXiv:2402.00433): a router in each block, which says how much of each task an example takes in the MLP.

Routers are learned by the entropy of the predictions, each example routed by itself.
"""

from collections.abc import Mapping
from typing import Literal

from merganser.learning import Values
from merganser.learning.settings import RoutingSettings
from merganser.operators.weight_ensembling import first_router, named

READS: Literal["deltas"] = "deltas"
Settings = RoutingSettings


def routers(widths: Mapping[str, int], tasks: int, settings: RoutingSettings, seed: int) -> Values:
    """Return routers that give every example `scaling` of every task: together that is task arithmetic."""
    values: Values = {}
    for block, width in widths.items():
        values |= named(block, first_router(width, tasks, settings.scaling, seed, block))
    return values
