"""What differs between the lineages of two results, and which of it reached them.

Two runs of one result, or two results of one run: stages are compared in pairs, from the results back to the sources.
All is read from entries of dvc.lock and lines of the ledger, so that a commit's need not be checked out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from dvcfleet.paths import overlap
from dvcfleet.record.ledger import Execution, entry_digest

Entry = Mapping[str, Any]
_Pair = tuple[str | None, str | None]


@dataclass(frozen=True)
class Side:
    """A run's stages: their entries of dvc.lock by name, their last executions, and these's environments.

    `renamed`: by a stage's name, what it was called before, where names alone changed.
    """

    entries: Mapping[str, Entry]
    executions: Mapping[str, Execution]
    environments: Mapping[str, Mapping[str, Any]]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Mapping[str, Entry], lines: Iterable[Execution], environments: Mapping[str, Any]) -> "Side":
        """Take the last execution of each entry from a ledger's lines, under an earlier name if names alone changed."""
        listed = list(lines)
        ran = {(line.stage, line.entry): line for line in listed if line.was is None}
        before = {(line.stage, line.entry): (line.was["stage"], line.was["entry"]) for line in listed if line.was}
        found = {}
        for name, entry in entries.items():
            key: tuple[str, str | None] = (name, entry_digest(entry))
            for _ in before:  # at most: names may have been changed back
                if key in ran or key not in before:
                    break
                key = before[key]
            if key in ran:
                found[name] = ran[key]
        return cls(entries, found, environments, {line.stage: line.was["stage"] for line in listed if line.was})

    def first_name(self, name: str) -> str:
        """Return what a stage was called first, as far back as no other stage has that name now."""
        for _ in self.renamed:
            before = self.renamed.get(name)
            if before is None or before in self.entries:
                break
            name = before
        return name

    def called(self, first_name: str) -> str | None:
        """Return the name of the stage that was called so first."""
        return next((name for name in self.entries if self.first_name(name) == first_name), None)


@dataclass(frozen=True)
class Difference:
    """One difference between two lineages; None: what one side does not have.

    `kind`: command, parameter, input (which no stage wrote), package, files (of a package of one version: which build
    it is), machine, or stage; `stages`: those that have it; `reached`: whether from one of these on all outputs on the
    way differ, up to the result.
    """

    kind: str
    name: str
    first: Any
    second: Any
    stages: tuple[str, ...]
    reached: bool


def compare(first: Side, second: Side, results: Sequence[tuple[str, str]]) -> tuple[list[Difference], bool]:
    """Compare the lineages of results, each given by the stage that wrote it on each side.

    Returns the differences, those first that reached a result, and whether the results' bytes differ.
    """
    pairs = _pairs(first, second, results)
    reaching = _reaching(first, second, pairs, set(results))
    found: dict[tuple[str, str, str, str], list[Any]] = {}
    for pair in pairs:
        for kind, name, one, other in _own_differences(first, second, pair):
            same = found.setdefault((kind, name, repr(one), repr(other)), [one, other, [], False])
            same[2].append(pair[0] or pair[1])
            same[3] |= pair in reaching
    listed = [Difference(key[0], key[1], one, other, tuple(at), yes) for key, (one, other, at, yes) in found.items()]
    return sorted(listed, key=lambda each: not each.reached), bool(reaching)


def writers(entries: Mapping[str, Entry], path: str) -> list[str]:
    """Return the stages that wrote a path, or into it."""
    return [name for name, entry in entries.items() if any(overlap(path, out["path"]) for out in entry.get("outs", ()))]


def _pairs(first: Side, second: Side, results: Sequence[tuple[str, str]]) -> dict[_Pair, list[_Pair]]:
    """Pair the stages of both sides, from the results upstream; return the pairs that each pair reads."""
    found: dict[_Pair, list[_Pair]] = {}
    todo: list[_Pair] = list(results)
    while todo:
        pair = todo.pop(0)
        if pair not in found:
            found[pair] = [] if None in pair else list(_upstream(first, second, pair))
            todo += found[pair]
    return found


def _upstream(first: Side, second: Side, pair: _Pair) -> Iterator[_Pair]:
    """Pair the stages that two stages read: those of one name, now or before, then those of one kind in their order."""
    ups = [
        {side.first_name(up): up for up in _read(side, name)} for side, name in zip((first, second), pair, strict=True)
    ]
    shared = [name for name in ups[0] if name in ups[1]]
    yield from ((ups[0][name], ups[1][name]) for name in shared)
    rest = [[up for name, up in each.items() if name not in shared] for each in ups]
    for kind in dict.fromkeys(name.partition("@")[0] for names in rest for name in names):
        yield from zip_longest(*([name for name in names if name.partition("@")[0] == kind] for names in rest))


def _read(side: Side, name: str | None) -> list[str]:
    paths = [dep["path"] for dep in side.entries.get(name or "", {}).get("deps", ())]
    return list(dict.fromkeys(up for path in paths for up in writers(side.entries, path)))


def _reaching(
    first: Side, second: Side, pairs: Mapping[_Pair, Sequence[_Pair]], results: set[tuple[str, str]]
) -> set[_Pair]:
    """Return the pairs from which on all outputs differ up to a result."""
    differ = {pair for pair in pairs if _outs(first, pair[0]) != _outs(second, pair[1])}
    reaching: set[_Pair] = set()
    todo: list[_Pair] = [pair for pair in results if pair in differ]
    while todo:
        pair = todo.pop()
        if pair not in reaching:
            reaching.add(pair)
            todo += [up for up in pairs[pair] if up in differ]
    return reaching


def _outs(side: Side, name: str | None) -> list[Any]:
    return [out.get("md5") for out in side.entries.get(name or "", {}).get("outs", ())]


def _own_differences(first: Side, second: Side, pair: _Pair) -> Iterator[tuple[str, str, Any, Any]]:
    """Compare two stages by themselves: without what other stages wrote for them."""
    one, other = (side.entries.get(name or "") for side, name in zip((first, second), pair, strict=True))
    if one is None or other is None:
        yield "stage", pair[0] or pair[1] or "", pair[0], pair[1]
        return
    if one["cmd"] != other["cmd"]:
        yield "command", "command", one["cmd"], other["cmd"]
    yield from _differing("parameter", *(dict(_params(entry)) for entry in (one, other)))
    sources = [
        {dep["path"]: dep.get("md5") for dep in entry.get("deps", ()) if not writers(side.entries, dep["path"])}
        for side, entry in ((first, one), (second, other))
    ]
    yield from _differing("input", *sources)
    ran = [side.executions.get(name or "") for side, name in zip((first, second), pair, strict=True)]
    if ran[0] and ran[1]:
        yield from _differing("package", _packages(first, ran[0]), _packages(second, ran[1]))
        for kind, read in (("package", _blas), ("files", _builds)):
            sides = read(first, ran[0]), read(second, ran[1])
            both = sides[0].keys() & sides[1].keys()  # older environments do not say
            yield from _differing(kind, *({name: each[name] for name in each if name in both} for each in sides))
        yield from _differing("machine", _machine(first, ran[0]), _machine(second, ran[1]))


def _packages(side: Side, ran: Execution) -> dict[str, Any]:
    content = side.environments.get(ran.environment, {})
    return {"Python": content.get("python"), "CUDA": content.get("cuda")} | content.get("packages", {})


def _blas(side: Side, ran: Execution) -> dict[str, Any]:
    """Return which BLAS each package uses."""
    return {
        f"BLAS of {name}": found for name, found in side.environments.get(ran.environment, {}).get("blas", {}).items()
    }


def _builds(side: Side, ran: Execution) -> dict[str, Any]:
    """Return which build of a version each package is."""
    content = side.environments.get(ran.environment, {})
    return {f"{name} {content['packages'][name]}": each for name, each in content.get("files", {}).items()}


def _machine(side: Side, ran: Execution) -> dict[str, Any]:
    content = side.environments.get(ran.environment, {})
    return {"host": ran.host} | {key: content.get(key) for key in ("processor", "processors", "gpus", "container")}


def _params(entry: Entry) -> Iterator[tuple[str, Any]]:
    for values in entry.get("params", {}).values():
        for key, value in values.items():
            yield from _leaves(key, value)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{place}.{key}", item)
    else:
        yield place, value


def _differing(kind: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield kind, name, first.get(name), second.get(name)
