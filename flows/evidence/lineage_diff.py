"""What differs between the lineages of two results of the workspace, or of a result in two runs."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json
from dvcfleet.errors import UserError, some
from dvcfleet.lineage.difference import Difference, Side, compare, writers
from dvcfleet.lineage.show import SHORT, short
from dvcfleet.lineage.targets import find_target
from dvcfleet.record.environments import environment_file
from dvcfleet.record.ledger import executions
from dvcfleet.repository import opened, root_around
from merganser.errors import InputError
from merganser.flows.evidence.run_diff import WORKSPACE, KeptRun, kept_run

_FILES = "files"  # the kind of a difference between two builds of one version
_MOST = 3  # packages that a line names
_DIGEST = re.compile(r"[0-9a-f]{32}(\.dir)?|[0-9a-f]{64}")


@dataclass(frozen=True)
class LineageDiff:
    """The differences between the lineages of two results, and whether the results' own outputs differ.

    `renamed`: entries of the second run by name, with the name of the first run's that is the same but for it.
    """

    first: str
    second: str
    of: tuple[str, ...]
    differs: bool
    differences: tuple[Difference, ...]
    renamed: Mapping[str, str]


def diff_lineages(repo: Path, first: str, second: str, of: str | None) -> LineageDiff:
    """Compare two results of the workspace, or with `of` (all results if there is none) a result in two runs.

    A run is what `merganser diff` takes. Raises InputError or UserError for names of nothing.
    """
    root, folder = root_around(repo), repo.absolute()
    with opened(repo) as dvc_repo:
        targets = [find_target(dvc_repo, text, folder).stages for text in ([of] if of else [])]
        if not of:
            try:
                targets = [find_target(dvc_repo, text, folder).stages for text in (first, second)]
            except (UserError, InputError):
                targets = []
    runs = (WORKSPACE, WORKSPACE) if len(targets) == 2 else (first, second)
    sides, renamed = _sides(root, *runs)
    if len(targets) == 2:
        results = list(zip(*targets, strict=False))
    else:
        results = _in_both(sides, targets[0] if targets else _last(sides[0]))
    if not results or any(name not in side.entries for pair in results for name, side in zip(pair, sides, strict=True)):
        raise InputError(f"{of or first}: no result that both have; `merganser lineage show` takes the same names")
    found, differs = compare(*sides, results)
    of_results = tuple(" and ".join(dict.fromkeys(pair)) for pair in results)
    return LineageDiff(first, second, of_results, differs, tuple(_without_names(found, renamed)), renamed)


def what_reached(root: Path, first: str, second: str) -> Iterator[Difference]:
    """Return the differences between two runs that reached the results that both have."""
    sides, renamed = _sides(root, first, second)
    results = _in_both(sides, _last(sides[0]))
    return (each for each in _without_names(compare(*sides, results)[0], renamed) if each.reached)


def in_words(differences: Iterable[Difference]) -> Iterator[str]:
    """Say what differs, and where, a line each; packages of which only the files differ share the last line."""
    listed = list(differences)
    for each in listed:
        if each.kind != _FILES:
            yield f"{each.kind} {each.name}: {_said(each.first)} -> {_said(each.second)} ({some(each.stages)})"
    names = list(dict.fromkeys(each.name.partition(" ")[0] for each in listed if each.kind == _FILES))
    if names:
        have = "1 package has" if len(names) == 1 else f"{len(names)} packages have"
        more = "; `lineage diff --json` names all" if len(names) > _MOST else ""
        yield f"{have} the same version and other files: {some(names, _MOST)}{more}"


def _sides(root: Path, before: str, after: str) -> tuple[tuple[Side, Side], dict[str, str]]:
    """Read two runs, and which entries have other names; what one run knows of earlier names holds for both."""
    runs = kept_run(root, before), kept_run(root, after)
    one, other = map(_side, runs)
    entries = _renamed_entries(*(run.params.get("methods") or {} for run in runs))
    stages = dict(_renamed_stages(one, other, entries))
    renamed = {**one.renamed, **other.renamed, **stages}
    left_over = set(stages), set(stages.values())  # what dvc.lock still has under the name of the other run
    first, second = (
        replace(side, renamed=renamed, entries={name: side.entries[name] for name in side.entries if name not in names})
        for side, names in zip((one, other), left_over, strict=True)
    )
    return (first, second), entries


def _side(kept: KeptRun) -> Side:
    lines = list(executions(kept.state))
    files = {line.environment: environment_file(kept.state, line.environment) for line in lines}
    environments = {digest: found for digest, path in files.items() if (found := read_json(path))}
    return Side.of(kept.lock.get("stages", {}), lines, environments)


def _renamed_entries(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Pair entries that one run alone has by method and parameters, where no other has the same of both."""
    pairs = [
        (new, old)
        for new, now in second.items()
        for old, then in first.items()
        if new not in first and old not in second and now == then
    ]
    often = Counter(chain.from_iterable(pairs))
    return {new: old for new, old in pairs if often[new] == often[old] == 1}


def _renamed_stages(first: Side, second: Side, entries: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give the second run's stages of renamed entries (KIND@ENTRY, KIND@ENTRY-...), and what the first calls them."""
    for name in second.entries:
        kind, _, rest = name.partition("@")
        for new, old in entries.items():
            before = f"{kind}@{old}{rest.removeprefix(new)}"
            if f"{rest}-".startswith(f"{new}-") and before in first.entries:
                yield name, before


def _without_names(differences: Iterable[Difference], renamed: Mapping[str, str]) -> Iterator[Difference]:
    """Leave out the parameters of renamed entries: each is there twice, under either name."""
    names = {("methods", name) for pair in renamed.items() for name in pair}
    return (one for one in differences if one.kind != "parameter" or tuple(one.name.split(".")[:2]) not in names)


def _in_both(sides: tuple[Side, Side], names: Iterable[str]) -> list[tuple[str, str]]:
    """Pair the stages of these names on one side with those of the other, which may have had other names."""
    first, second = sides
    originals = [(second if name in second.entries else first).first_name(name) for name in names]
    pairs = [(first.called(name), second.called(name)) for name in dict.fromkeys(originals)]
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def _last(side: Side) -> list[str]:
    """Return the stages whose outputs no stage reads."""
    read = {
        up
        for entry in side.entries.values()
        for dep in entry.get("deps", ())
        for up in writers(side.entries, dep["path"])
    }
    return [name for name in side.entries if name not in read]


def lineage_diff_lines(found: LineageDiff) -> Iterator[str]:
    """Say in the terminal what differs: first what reached the results."""
    same = "" if found.differs else ": the same bytes"
    yield f"{found.first} -> {found.second}, {some(found.of)}{same}"
    for new, old in found.renamed.items():
        yield f"entry {new} is compared with {old}: the same method and parameters under another name"
    for reached, title in ((True, "reached the result"), (False, "did not reach it: an output on the way is the same")):
        differences = [each for each in found.differences if each.reached is reached]
        if differences:
            yield f"{title}:"
        yield from (f"  {line}" for line in in_words(differences))
    if not found.differences:
        yield "nothing else differs"


def _said(value: Any) -> str:
    is_digest = isinstance(value, str) and _DIGEST.fullmatch(value)
    return "none" if value is None else short(value, SHORT) if is_digest else short(value)
