"""The report so far: the scores of a run that is still going on."""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvcfleet.scheduling.order import with_needs

REPORT, EVALUATE = "report", "evaluate@"
FIRST = 3  # entries of the first table


class SoFar:
    """The scores of one run's stages, and the page with them; `params`: its params.yaml, read with the first score."""

    def __init__(self, params: Path) -> None:
        """Begin with no score."""
        self._params = params
        self._stages: dict[str, tuple[str, str]] = {}
        self._scores: dict[tuple[str, str], float] = {}

    def note(self, ended: Set[str], latest: str, say: Callable[[str], None]) -> None:
        """Write the page if the latest stage gave a score, with the scores so far; say once where it is."""
        if not latest.startswith(EVALUATE):
            return
        from merganser.report.so_far import PAGE, write_so_far

        with suppress(OSError, ValueError, LookupError, TypeError):  # a run does not fail for it
            is_first = not self._stages
            self._stages = self._stages or _evaluations(self._params)
            for stage in ended if is_first else {latest}:
                if stage in self._stages:
                    self._scores[self._stages[stage]] = _score(*self._stages[stage])
            entries, tasks = (list(dict.fromkeys(names)) for names in zip(*self._stages.values(), strict=True))
            write_so_far(self._scores, entries, tasks)
            if is_first:
                say(f"the report so far, marked as partial, grows with each score: {PAGE}")

    def end(self, done: Set[str]) -> None:
        """Remove the page once the run has written the report."""
        from merganser.report.so_far import FOLDER

        if REPORT in done:
            shutil.rmtree(FOLDER, ignore_errors=True)


def first_evaluations(params: Path, needs: Mapping[str, Collection[str]]) -> set[str]:
    """Return the evaluations of the few cheapest entries; `needs`: a plan's stages, in its order."""
    of_entries: dict[str, set[str]] = {}
    with suppress(LookupError, TypeError, AttributeError):  # not a comparison's params.yaml
        for stage, (entry, _) in _evaluations(params).items():
            if stage in needs:
                of_entries.setdefault(entry, set()).add(stage)
    least = sorted(of_entries.values(), key=lambda stages: len(with_needs(stages, needs)))
    return set().union(*least[:FIRST])


def _evaluations(path: Path) -> dict[str, tuple[str, str]]:
    """Return the entry and task of each stage that gives a score, in the order of params.yaml."""
    from merganser.config.sections import UNMEASURED
    from merganser.limits import read_yaml

    params: Any = read_yaml(path)
    tasks = [name for name, task in params["tasks"].items() if task.get("kind") != UNMEASURED]
    return {f"{EVALUATE}{entry}-{task}": (entry, task) for entry in params["methods"] for task in tasks}


def _score(entry: str, task: str) -> float:
    from merganser.tasks.stages import METRICS

    return float(json.loads((METRICS / entry / f"{task}.json").read_text(encoding="utf-8"))["value"])
