"""Expected durations of stages: the last ones, else the median of their kind."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.messages import Result
from dvcfleet.record.ledger import executions

# Of a stage of which nothing is known; the order of stages depends on how durations compare, not on their unit.
_UNKNOWN_S = 1.0
_RUNS, _ALIKE = 8, 1.5  # the runs of a stage that are looked at, and the ratio of CPU times that are alike


def last_durations(folder: Path) -> dict[str, float]:
    """Return each stage's duration in its last successful run; `folder`: the ledger's.

    The shortest of recent runs with about the same CPU time counts: the others waited for a busy machine.
    """
    ended = defaultdict[str, deque[tuple[float, float | None]]](partial(deque, maxlen=_RUNS))
    for one in executions(folder, older=False):
        if one.result == Result.DONE:
            ended[one.stage].append((one.seconds, one.cpu_s))
    return {stage: _unhindered(runs) for stage, runs in ended.items()}


def last_cpu_times(folder: Path) -> dict[str, float]:
    """Return each stage's CPU seconds in its last successful run, as far as the ledger in a folder has them."""
    done = (one for one in executions(folder, older=False) if one.result == Result.DONE)
    return {one.stage: one.cpu_s for one in done if one.cpu_s is not None}


def _unhindered(runs: Sequence[tuple[float, float | None]]) -> float:
    """Return the shortest duration of runs with about the CPU time of the last one.

    >>> _unhindered([(9.0, None), (3.0, 2.4), (1.0, 0.2), (30.0, 2.5)])
    3.0
    """
    seconds, last = runs[-1]
    alike = [took for took, cpu_s in runs if last and cpu_s and last / _ALIKE <= cpu_s <= last * _ALIKE]
    return min(alike, default=seconds)


class Durations:
    """Expected seconds of stages; `before`: earlier durations by name; `restorable` stages need not run again."""

    def __init__(self, before: Mapping[str, float], restorable: Iterable[str] = ()) -> None:
        self._of_kind = medians(before)
        self._longest = max(self._of_kind.values(), default=_UNKNOWN_S)
        self._before = {**before, **dict.fromkeys(restorable, 0.0)}

    def __getitem__(self, name: str) -> float:
        """Return the seconds that a stage took before, else the median of its kind.

        A kind of which nothing is known is taken for as long as the longest one: so its first stage starts early.
        """
        known = self.known(name)
        return self._longest if known is None else known

    def known(self, name: str) -> float | None:
        """Return a stage's earlier seconds, else the median of its kind; None if nothing is known."""
        own = self._before.get(name)
        return self._of_kind.get(kind_of(name)) if own is None else own

    def note(self, name: str, seconds: float) -> bool:
        """Record a stage's duration; tell whether it is the first of its kind, which changes others' expectations."""
        self._before[name] = seconds
        if kind_of(name) in self._of_kind:
            return False
        self._of_kind[kind_of(name)] = seconds
        self._longest = max(self._of_kind.values())
        return True


def medians(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the median seconds of each kind of stage."""
    of_kind: dict[str, list[float]] = {}
    for name, stage_seconds in seconds.items():
        of_kind.setdefault(kind_of(name), []).append(stage_seconds)
    return {kind: median(stage_seconds) for kind, stage_seconds in of_kind.items()}
