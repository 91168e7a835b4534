"""Differences between the lineages of two results, and which of them reached the results.

The results are one result in two runs, or two results in one run. Stages are compared in pairs, from the results back
to the sources. Everything is read from dvc.lock entries and ledger lines, so commits need no checkout.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from dvcfleet.disk import overlap
from dvcfleet.record.ledger import Execution, entry_digest

Entry = Mapping[str, Any]
_Pair = tuple[str | None, str | None]


@dataclass(frozen=True)
class Side:
    """A run's stages: their dvc.lock entries by name, their last executions, and the environments of these.

    `renamed`: a stage's earlier name, if only names changed.
    """

    entries: Mapping[str, Entry]
    executions: Mapping[str, Execution]
    environments: Mapping[str, Mapping[str, Any]]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Mapping[str, Entry], lines: Iterable[Execution], environments: Mapping[str, Any]) -> "Side":
        """Find each entry's last execution in a ledger's lines, also under an earlier name if only names changed."""
        listed = list(lines)
        ran = {(line.stage, line.entry): line for line in listed if line.was is None}
        before = {(line.stage, line.entry): (line.was["stage"], line.was["entry"]) for line in listed if line.was}
        latest = {}
        for name, entry in entries.items():
            key: tuple[str, str | None] = (name, entry_digest(entry))
            for _ in before:  # at most: names may have been changed back
                if key in ran or key not in before:
                    break
                key = before[key]
            if key in ran:
                latest[name] = ran[key]
        return cls(entries, latest, environments, {line.stage: line.was["stage"] for line in listed if line.was})

    def first_name(self, name: str) -> str:
        """Return a stage's first name, as far as no other stage has it now."""
        for _ in self.renamed:
            before = self.renamed.get(name)
            if before is None or before in self.entries:
                break
            name = before
        return name

    def called(self, first_name: str) -> str | None:
        """Return the current name of the stage with this first name."""
        return next((name for name in self.entries if self.first_name(name) == first_name), None)

    def upstream(self, name: str | None) -> list[str]:
        """Return the stages whose outputs a stage reads."""
        paths = [dep["path"] for dep in self.entries.get(name or "", {}).get("deps", ())]
        return list(dict.fromkeys(up for path in paths for up in writers(self.entries, path)))

    @property
    def last(self) -> list[str]:
        """Return the stages whose outputs no stage reads."""
        read = {up for name in self.entries for up in self.upstream(name)}
        return [name for name in self.entries if name not in read]

    def facts(self, name: str) -> Iterator[tuple[str, bool, Mapping[str, Any]]]:
        """Yield the other inputs of a stage's result: a kind, and values by name.

        Between them: whether all environments have it, including those of older versions.
        """
        entry, ran = self.entries[name], self.executions.get(name)
        yield "command", True, {"command": entry["cmd"]}
        yield "parameter", True, dict(item for values in entry.get("params", {}).values() for item in leaves(values))
        deps = entry.get("deps", ())
        yield "input", True, {dep["path"]: dep.get("md5") for dep in deps if not writers(self.entries, dep["path"])}
        if ran:
            content = self.environments.get(ran.environment, {})
            packages = content.get("packages", {})
            yield "package", True, {"Python": content.get("python"), "CUDA": content.get("cuda")} | packages
            yield "package", False, {f"BLAS of {package}": each for package, each in content.get("blas", {}).items()}
            builds = content.get("files", {}).items()
            yield "files", False, {f"{package} {packages[package]}": each for package, each in builds}
            machine = {key: content.get(key) for key in ("processor", "processors", "gpus", "container")}
            yield "machine", True, {"host": ran.host} | machine


@dataclass(frozen=True)
class Difference:
    """One difference between two lineages; None: missing on that side.

    `kind`: command, parameter, input (that no stage wrote), package, files (of a package of one version: another
    build), machine, or stage; `stages`: those that have it; `reached`: whether all outputs between one of these and
    the result differ.
    """

    kind: str
    name: str
    first: Any
    second: Any
    stages: tuple[str, ...]
    reached: bool


def compare(first: Side, second: Side, results: Sequence[tuple[str, str]]) -> tuple[list[Difference], bool]:
    """Compare the lineages of results, each given by the stage that wrote it on each side.

    Returns the differences, those that reached a result first, and whether the results' bytes differ.
    """
    pairs = _pairs(first, second, results)
    seen: dict[tuple[str, str, str, str], list[Any]] = {}
    for pair, reached in pairs.items():
        for kind, name, one, other in _own_differences(first, second, pair):
            same = seen.setdefault((kind, name, repr(one), repr(other)), [one, other, [], False])
            same[2].append(pair[0] or pair[1])
            same[3] |= reached
    listed = [Difference(key[0], key[1], one, other, tuple(at), yes) for key, (one, other, at, yes) in seen.items()]
    return sorted(listed, key=lambda each: not each.reached), any(pairs.values())


def writers(entries: Mapping[str, Entry], path: str) -> list[str]:
    """Return the stages that wrote a path, or files in it."""
    return [name for name, entry in entries.items() if any(overlap(path, out["path"]) for out in entry.get("outs", ()))]


def _pairs(first: Side, second: Side, results: Sequence[tuple[str, str]]) -> dict[_Pair, bool]:
    """Pair the stages of both sides, from the results upstream; tell whether each pair's difference reached one."""
    pairs: dict[_Pair, bool] = {}
    upstream: dict[_Pair, list[_Pair]] = {}
    todo: list[tuple[_Pair, bool]] = [(pair, True) for pair in results]
    while todo:
        pair, reached = todo.pop(0)
        reached = reached and _outs(first, pair[0]) != _outs(second, pair[1])
        if pair not in pairs:
            upstream[pair] = [] if None in pair else list(_upstream(first, second, pair))
        if reached > pairs.get(pair, -1):
            pairs[pair] = reached
            todo += [(up, reached) for up in upstream[pair]]
    return pairs


def _upstream(first: Side, second: Side, pair: _Pair) -> Iterator[_Pair]:
    """Pair the stages that two stages read: first those with the same name, now or before, then by kind in order."""
    ups = [
        {side.first_name(up): up for up in side.upstream(name)}
        for side, name in zip((first, second), pair, strict=True)
    ]
    shared = [name for name in ups[0] if name in ups[1]]
    yield from ((ups[0][name], ups[1][name]) for name in shared)
    rest = [[up for name, up in each.items() if name not in shared] for each in ups]
    for kind in dict.fromkeys(name.partition("@")[0] for names in rest for name in names):
        yield from zip_longest(*([name for name in names if name.partition("@")[0] == kind] for names in rest))


def _outs(side: Side, name: str | None) -> list[Any]:
    return [out.get("md5") for out in side.entries.get(name or "", {}).get("outs", ())]


def _own_differences(first: Side, second: Side, pair: _Pair) -> Iterator[tuple[str, str, Any, Any]]:
    """Compare two stages on their own, without inputs from other stages."""
    before, after = pair
    if before is None or after is None or before not in first.entries or after not in second.entries:
        yield "stage", before or after or "", before, after
        return
    for (kind, is_complete, one), (_, _, other) in zip(first.facts(before), second.facts(after), strict=False):
        for name, sides in differing(one, other).items():
            if is_complete or (name in one and name in other):
                yield kind, name, *sides


def leaves(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Give the values of nested mappings by their dotted names.

    >>> dict(leaves({"ties": {"density": 0.2, "more": {}}, "seed": 1}))
    {'ties.density': 0.2, 'ties.more': {}, 'seed': 1}
    """
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each name with different values; None for a missing one.

    >>> differing({"a": 1, "b": 2}, {"b": 3, "a": 1, "c": 4})
    {'b': (2, 3), 'c': (None, 4)}
    """
    return {
        name: (first.get(name), second.get(name))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    }
