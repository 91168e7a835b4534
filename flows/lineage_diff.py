"""What differs between the lineages of two results of the workspace, or of a result in two runs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
from flows.run_diff import WORKSPACE, kept_run
from merganser.errors import InputError

_FILES = "files"  # the kind of a difference between two builds of one version
_MOST = 3  # packages that a line names
_DIGEST = re.compile(r"[0-9a-f]{32}(\.dir)?|[0-9a-f]{64}")


@dataclass(frozen=True)
class LineageDiff:
    """The differences between the lineages of two results, and whether the results' own outputs differ."""

    first: str
    second: str
    of: tuple[str, ...]
    differs: bool
    differences: tuple[Difference, ...]


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
            except UserError:
                targets = []
    runs = (WORKSPACE, WORKSPACE) if len(targets) == 2 else (first, second)
    sides = _sides(root, *runs)
    if len(targets) == 2:
        results = list(zip(*targets, strict=False))
    else:
        results = _in_both(sides, targets[0] if targets else _last(sides[0]))
    if not results or any(name not in side.entries for pair in results for name, side in zip(pair, sides, strict=True)):
        raise InputError(f"{of or first}: no result that both have; `merganser lineage show` takes the same names")
    found, differs = compare(*sides, results)
    return LineageDiff(
        first, second, tuple(" and ".join(dict.fromkeys(pair)) for pair in results), differs, tuple(found)
    )


def what_reached(root: Path, first: str, second: str) -> Iterator[Difference]:
    """Return the differences between two runs that reached the results that both have."""
    sides = _sides(root, first, second)
    results = _in_both(sides, _last(sides[0]))
    return (each for each in compare(*sides, results)[0] if each.reached)


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


def _sides(root: Path, first: str, second: str) -> tuple[Side, Side]:
    """Read two runs; what one of them knows of earlier names holds for both."""
    one, other = _side(root, first), _side(root, second)
    renamed = {**one.renamed, **other.renamed}
    return replace(one, renamed=renamed), replace(other, renamed=renamed)


def _side(root: Path, name: str) -> Side:
    kept = kept_run(root, name)
    lines = list(executions(kept.state))
    files = {line.environment: environment_file(kept.state, line.environment) for line in lines}
    environments = {digest: found for digest, path in files.items() if (found := read_json(path))}
    return Side.of(kept.lock.get("stages", {}), lines, environments)


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
