"""Whether a stage may start or start again: exclusive groups, retries, and nodes that were lost.

A stage's `meta` names its group (`exclusive: NAME`), of which only one stage runs at a time, in the order of `dvc
repro`. Stages that use dvclive get one by themselves: dvclive reads and rewrites dvc.yaml at each step, and of two that
do so at the same time one may take the other's half-written file for the whole.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import relpath

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import exclusive
from dvcfleet.errors import some
from dvcfleet.messages import Outcome
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import Machine, fitting_none, none_fits

# What changes dvc.yaml: dvclive, and the function of DVC's with which it does.
WRITERS = rb"\b(dvclive|modify_yaml)\b"
_DVCLIVE = "dvclive"


def exclusive_groups(
    stages: Iterable[Stage], rewrites: Callable[[Stage], bool] = lambda stage: False
) -> dict[str, str]:
    """Return the groups of the stages that are in one, by the stages' names.

    `rewrites` tells whether a stage's code changes the dvc.yaml in its working folder. Raises UserError.
    """
    groups = {}
    for stage in stages:
        name = exclusive(stage)
        if name is None and stage.cmd and rewrites(stage):
            folder = relpath(stage.wdir, stage.repo.root_dir)
            name = _DVCLIVE if folder == "." else f"{_DVCLIVE} in {folder}"
        if isinstance(name, str):
            groups[stage.addressing] = name
    return groups


def found_in_code(stages: Iterable[Stage], groups: Mapping[str, str]) -> list[str]:
    """Say which stages take turns without their `meta` asking for it, a line for each group of more than one."""
    members: dict[str, list[str]] = {}
    for stage in stages:
        if stage.addressing in groups and exclusive(stage) is None:
            members.setdefault(groups[stage.addressing], []).append(stage.addressing)
    return [
        f"{some(names)} use dvclive, which rewrites dvc.yaml: they run one at a time, in the order of dvc repro "
        "(meta: {dvcfleet: {exclusive: false}} lets a stage run with the others)"
        for names in members.values()
        if len(names) > 1
    ]


def predecessors(names: Iterable[str], groups: Mapping[str, str]) -> dict[str, str]:
    """Return which stage each one waits for: the one of its group before it in this order.

    >>> predecessors(["a", "b", "c", "d"], {"a": "x", "c": "x", "d": "y"})
    {'c': 'a'}
    """
    latest: dict[str, str] = {}
    latest_of = {}
    for name in names:
        if group := groups.get(name):
            if group in latest:
                latest_of[name] = latest[group]
            latest[group] = name
    return latest_of


# How often a stage is started again because its worker was lost, in addition to the retries in `meta`.
LOSSES = 3
# Exit codes after which it is not: success, the user's mistake, and none, where the run itself stopped it.
FINAL = (0, 2, None)


class Retries:
    """Counts how often each stage failed, and how often it was lost; `resources`: those that each stage requests."""

    def __init__(self, resources: Mapping[str, Resources]) -> None:
        self._resources = resources
        self._counts: Counter[tuple[str, bool]] = Counter()

    def take(self, outcome: Outcome) -> bool:
        """Count an outcome; tell whether its stage is to be started again."""
        if not outcome.lost and outcome.exit_code in FINAL:
            self._counts[outcome.name, False] = 0
            return False
        self._counts[outcome.name, outcome.lost] += 1
        most = LOSSES if outcome.lost else self._resources[outcome.name].retries
        return self._counts[outcome.name, outcome.lost] <= most

    def times(self, outcome: Outcome) -> str:
        """Say how often what ended a stage has happened to it, if more than once."""
        count = self._counts[outcome.name, outcome.lost]
        return f", {count} times" if count > 1 else ""


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
