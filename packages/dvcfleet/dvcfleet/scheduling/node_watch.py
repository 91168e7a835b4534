"""Notice stages that wait for a node: a node of the cluster was lost, and no other has what they ask for."""

import time
from collections.abc import Callable, Mapping, Sequence

from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.cluster_pool import fitting_none, none_fits
from dvcfleet.scheduling.resource_pool import Machine

LOOK_S = 5.0  # between two looks at the cluster
SAY_S = 60.0  # between two lines


class NodeWatch:
    """Looks at the machines of a cluster now and then; `machines` returns None where none are counted.

    `tell` is called after each look with the names of the stages that wait, and a line, empty if it was said just now.
    """

    def __init__(
        self,
        machines: Callable[[], Sequence[Machine] | None],
        tell: Callable[[Sequence[str], str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machines, self._tell, self._clock = machines, tell, clock
        self._look_at, self._say_at = clock() + LOOK_S, 0.0

    def look(self, asked: Mapping[str, Resources]) -> None:
        """Look, unless that was a moment ago, whether the cluster has what its stages ask for."""
        now = self._clock()
        machines = self._machines() if now >= self._look_at else None
        if machines is None:
            return
        self._look_at = now + LOOK_S
        waiting = fitting_none(machines, asked)
        self._say_at = self._say_at if waiting else now
        line = ""
        if waiting and now >= self._say_at:
            self._say_at = now + SAY_S
            lacks = none_fits(machines, asked[waiting[0]])
            more = f"; {len(waiting) - 1} more wait so" if waiting[1:] else ""
            line = f"waiting for a node to join: {waiting[0]} {lacks}{more}"
        self._tell(waiting, line)
