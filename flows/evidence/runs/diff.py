"""Differences between two runs: parameters, code, environment, scores with paired tests, and lineage."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError, some
from dvcfleet.lineage.difference import Difference, Side, compare, differing
from dvcfleet.lineage.hooks import find_target
from dvcfleet.lineage.show import SHORT, short
from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.evidence.runs.run import WORKSPACE, Run, read_run
from merganser.tasks.stages import CODE

if TYPE_CHECKING:
    from merganser.report.run_scores import PairedScore


_FILES = "files"  # the kind of a difference between two builds of one version
_MOST = 3  # packages that a line names
_DIGEST = re.compile(r"[0-9a-f]{32}(\.dir)?|[0-9a-f]{64}")


@dataclass(frozen=True)
class LineageDiff:
    """Differences between the lineages of results, and whether the results' own outputs differ.

    `of`: the stages that wrote the results; empty if there are none to compare. `renamed`: entries of the second
    run, and their names in the first.
    """

    first: str
    second: str
    of: tuple[str, ...]
    differs: bool
    differences: tuple[Difference, ...]
    renamed: Mapping[str, str]

    def in_words(self, *, reached: bool) -> list[str]:
        """Return a line for each difference that reached the results, or for each that did not."""
        return list(_in_words([each for each in self.differences if each.reached is reached]))


def compare_lineages(before: Run, after: Run, targets: Sequence[Sequence[str]] = ()) -> LineageDiff:
    """Compare two runs' lineages of results: those of one target, of two targets in turn, or all."""
    sides, renamed = _sides(before, after)
    if len(targets) == 2:
        pairs = list(zip(*targets, strict=False))
    else:
        pairs = _in_both(sides, targets[0] if targets else sides[0].last)
    if any(name not in side.entries for pair in pairs for name, side in zip(pair, sides, strict=True)):
        pairs = []
    differences, differs = compare(*sides, pairs)
    of = tuple(" and ".join(dict.fromkeys(pair)) for pair in pairs)
    return LineageDiff(before.name, after.name, of, differs, tuple(_without_names(differences, renamed)), renamed)


def value_in_words(value: Any) -> str:
    """Return one side's value as text, with digests and long values cut off."""
    is_digest = isinstance(value, str) and _DIGEST.fullmatch(value)
    return "none" if value is None else short(value, SHORT) if is_digest else short(value)


def _in_words(differences: Iterable[Difference]) -> Iterator[str]:
    """Return lines with the differences and their places; packages that differ only in files share the last line."""
    names: dict[str, None] = {}
    for difference in differences:
        if difference.kind == _FILES:
            names[difference.name.partition(" ")[0]] = None
        else:
            sides = f"{value_in_words(difference.first)} -> {value_in_words(difference.second)}"
            yield f"{difference.kind} {difference.name}: {sides} ({some(difference.stages)})"
    if names:
        have = "1 package has" if len(names) == 1 else f"{len(names)} packages have"
        more = "; `lineage diff --json` names all" if len(names) > _MOST else ""
        yield f"{have} the same version and other files: {some(list(names), _MOST)}{more}"


def _sides(before: Run, after: Run) -> tuple[tuple[Side, Side], dict[str, str]]:
    """Return two runs' stages, and the renamed entries; a rename that one run knows applies to both."""
    one, other = _side(before), _side(after)
    entries = _renamed_entries(*(run.params.get("methods") or {} for run in (before, after)))
    stages = dict(_renamed_stages(one, other, entries))
    renamed = {**one.renamed, **other.renamed, **stages}
    left_over = set(stages), set(stages.values())  # what dvc.lock still has under the name of the other run
    first, second = (
        replace(side, renamed=renamed, entries={name: side.entries[name] for name in side.entries if name not in names})
        for side, names in zip((one, other), left_over, strict=True)
    )
    return (first, second), entries


def _side(run: Run) -> Side:
    environments = {digest: run.environment_of(digest) for digest in {line.environment for line in run.ledger}}
    return Side.of(run.stages, run.ledger, environments)


def _renamed_entries(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Pair entries that only one run has by method and parameters, if the pair is unique."""
    pairs = [
        (new, old)
        for new, now in second.items()
        for old, then in first.items()
        if new not in first and old not in second and now == then
    ]
    often = Counter(chain.from_iterable(pairs))
    return {new: old for new, old in pairs if often[new] == often[old] == 1}


def _renamed_stages(first: Side, second: Side, entries: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the second run's stages of renamed entries (KIND@ENTRY, KIND@ENTRY-...) with their first names."""
    for name in second.entries:
        kind, _, rest = name.partition("@")
        for new, old in entries.items():
            before = f"{kind}@{old}{rest.removeprefix(new)}"
            if f"{rest}-".startswith(f"{new}-") and before in first.entries:
                yield name, before


def _without_names(differences: Iterable[Difference], renamed: Mapping[str, str]) -> Iterator[Difference]:
    """Leave out the parameters of renamed entries, which are there under both names."""
    names = {("methods", name) for pair in renamed.items() for name in pair}
    return (one for one in differences if one.kind != "parameter" or tuple(one.name.split(".")[:2]) not in names)


def _in_both(sides: tuple[Side, Side], names: Iterable[str]) -> list[tuple[str, str]]:
    """Pair one side's stages of these names with the other side's, which may have been renamed."""
    first, second = sides
    originals = [(second if name in second.entries else first).first_name(name) for name in names]
    pairs = [(first.called(name), second.called(name)) for name in dict.fromkeys(originals)]
    return [(one, other) for one, other in pairs if one is not None and other is not None]


class RunDiff:
    """Differences between two runs; parameters and environment have both values by name, None if a run has none.

    `code`: the files whose digests differ; `only`: the entries that only one run has, by that run's name.
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
    def scores(self) -> "list[PairedScore]":
        """Compare the scores of entries and tasks in both runs, for tasks with a model and unseen ones."""
        from merganser.report.paired import compare_scores  # loads PyTorch

        entries, tasks, unseen = map(self._shared, ("methods", "tasks", "unseen"))
        return compare_scores(entries, tasks, unseen, *(run.in_data for run in self._runs))

    @property
    def worse(self) -> "list[PairedScore]":
        """Return the scores that fell by more than the sampling error."""
        return [line for line in self.scores if line.is_worse]

    def as_json(self) -> dict[str, Any]:
        """Return both runs side by side as plain data with stable keys."""
        sides = {"parameters": self.parameters, "code": self.code, "environment": self.environment}
        scores = [asdict(line) for line in self.scores]
        return {"first": self.first, "second": self.second, **sides, "scores": scores, "only": self.only}

    def _shared(self, section: str) -> list[str]:
        first, second = (run.params.get(section) or () for run in self._runs)
        return [name for name in first if name in second]


def diff_runs(root: Path, first: str, second: str) -> RunDiff:
    """Compare two runs; raise InputError for an unknown name."""
    here = Path.cwd()
    with opened(root) as repo:
        return RunDiff(read_run(repo, first, here), read_run(repo, second, here))


def diff_lineages(path: Path, first: str, second: str, of: str | None) -> LineageDiff:
    """Compare two results of the workspace; with `of`, one result in two runs; or all results of two runs.

    Raises InputError or UserError for unknown names.
    """
    folder, here = path.absolute(), Path.cwd()
    with opened(path) as repo:
        targets = _targets(repo, folder, first, second, of)
        names = (WORKSPACE, WORKSPACE) if len(targets) == 2 else (first, second)
        before, after = (read_run(repo, name, here) for name in names)
        difference = compare_lineages(before, after, targets)
    if not difference.of:
        raise InputError(f"{of or first}: no result that both have; `merganser lineage show` takes the same names")
    return replace(difference, first=first, second=second)


def _targets(repo: Repo, folder: Path, first: str, second: str, of: str | None) -> list[Sequence[str]]:
    """Return the stages of one result, or of each of two; empty if the names are those of runs."""
    if of:
        return [find_target(repo, of, folder).stages]
    with suppress(UserError, InputError):
        return [find_target(repo, text, folder).stages for text in (first, second)]
    return []
