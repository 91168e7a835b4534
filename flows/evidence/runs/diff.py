"""The differences between two runs: parameters, code, environment, scores with paired tests, lineage."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.lineage.difference import differing
from dvcfleet.lineage.targets import find_target
from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.evidence.runs.lineage import LineageDiff, compare_lineages
from merganser.flows.evidence.runs.run import WORKSPACE, Run, read_run
from merganser.tasks.stages import CODE

if TYPE_CHECKING:
    from merganser.report.paired import Line


class RunDiff:
    """The differences between two runs; of parameters and environment both values by name, None where a run has none.

    `code`: the files whose digests differ; `only`: the entries that one run alone has, by its name.
    """

    def __init__(self, before: Run, after: Run) -> None:
        self._runs = before, after
        self.first, self.second = before.name, after.name
        self.parameters = differing(before.parameters, after.parameters)
        self.code = sorted(differing(before.listing(CODE), after.listing(CODE)))
        self.environment = differing(before.environment, after.environment)
        both = self._shared("methods")
        only = {run.name: [name for name in run.params.get("methods") or () if name not in both] for run in self._runs}
        self.only = {run: names for run, names in only.items() if names}

    @cached_property
    def scores(self) -> "list[Line]":
        """Compare the scores of entries and tasks that both runs have, on tasks with a model and without."""
        from merganser.report.paired import compare_scores  # loads PyTorch

        entries, tasks, unseen = map(self._shared, ("methods", "tasks", "unseen"))
        return compare_scores(entries, tasks, unseen, *(run.in_data for run in self._runs))

    @property
    def worse(self) -> "list[Line]":
        """Return the scores that fell by more than the sampling error."""
        return [line for line in self.scores if line.is_worse]

    def lineage(self, targets: Sequence[Sequence[str]] = ()) -> LineageDiff:
        """Compare how the results of a target's stages were made, those of two targets, or all if there is none."""
        return compare_lineages(*self._runs, targets)

    def as_json(self) -> dict[str, Any]:
        """Return the runs side by side as plain data; the keys are stable."""
        sides = {"parameters": self.parameters, "code": self.code, "environment": self.environment}
        scores = [asdict(line) for line in self.scores]
        return {"first": self.first, "second": self.second, **sides, "scores": scores, "only": self.only}

    def _shared(self, section: str) -> list[str]:
        first, second = (run.params.get(section) or () for run in self._runs)
        return [name for name in first if name in second]


def diff_runs(root: Path, first: str, second: str) -> RunDiff:
    """Compare two runs; raise InputError for a name of no run."""
    here = Path.cwd()
    with opened(root) as repo:
        return RunDiff(read_run(repo, first, here), read_run(repo, second, here))


def diff_lineages(path: Path, first: str, second: str, of: str | None) -> LineageDiff:
    """Compare two results of the workspace, or with `of` (all results if there is none) a result in two runs.

    Raises InputError or UserError for names of nothing.
    """
    folder, here = path.absolute(), Path.cwd()
    with opened(path) as repo:
        targets = _targets(repo, folder, first, second, of)
        names = (WORKSPACE, WORKSPACE) if len(targets) == 2 else (first, second)
        found = RunDiff(*(read_run(repo, name, here) for name in names)).lineage(targets)
    if not found.of:
        raise InputError(f"{of or first}: no result that both have; `merganser lineage show` takes the same names")
    return replace(found, first=first, second=second)


def _targets(repo: Repo, folder: Path, first: str, second: str, of: str | None) -> list[Sequence[str]]:
    """Return the stages of one result to compare, or of each of two; empty if these are names of runs."""
    if of:
        return [find_target(repo, of, folder).stages]
    with suppress(UserError, InputError):
        return [find_target(repo, text, folder).stages for text in (first, second)]
    return []
