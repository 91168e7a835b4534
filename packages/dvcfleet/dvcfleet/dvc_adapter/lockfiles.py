"""Write dvc.lock files: many entries at a time, atomically, and without losing entries if the run is killed.

An entry is written to a journal as soon as its stage ends, and to dvc.lock with the next group, once the files that the
group names are on disk. A run that finds a journal first writes its entries to dvc.lock. The files are those that `dvc
repro` writes, byte for byte: entries keep their places and comments, and new ones follow in its order, whichever ended
first. A note next to the journal counts the entries that are older than the run, so that a run that resumes after a
kill puts its own among those of the killed one.
"""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from dvcfleet.disk import append_lines, read_json, write_durably
from dvcfleet.dvc_adapter.lock_entries import (
    are_as_dumped,
    join_lock_file,
    lock_entry,
    number_anchors,
    read_back,
    split_lock_file,
)
from dvcfleet.dvc_adapter.protocols import PipelineStage, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, lock_entry_of

# Write a group after this many times the duration of the last write: writing then takes a few percent of the time.
_PATIENCE = 20
_SHORTEST_WAIT_S = 2.0
# But not later than this: a crash of the machine loses the stages that ended since the last write.
_LONGEST_WAIT_S = 60.0
_LINE = {"path": str, "name": str, "lines": str, "before": str}  # what a line of the journal holds


class LockFiles:
    """The entries of a repository's dvc.lock files, as this run changes them.

    `order` returns, per lock file, the order of new entries, that of `dvc repro`; it is called at the first write,
    unless `order_as` was. `track` is called with each written file. `sync` gives files their new texts once
    everything else is on disk.
    """

    def __init__(
        self,
        journal: Path,
        order: Callable[[], dict[str, list[str]]],
        track: Callable[[str], object],
        sync: Callable[[Mapping[Path, str]], object],
    ) -> None:
        self._journal = journal
        self._order: Callable[[], dict[str, list[str]]] = cache(order)
        self._track = track
        self.sync = sync
        self._digests: dict[str, str] = {}
        self._pending: dict[str, dict[str, Any]] = defaultdict(dict)
        self._lines: dict[tuple[str, str], str] = {}
        self._wait_s = _SHORTEST_WAIT_S
        self._idle_s = 0.0
        self._written_at = time.monotonic()
        # The text last written to each file, and its entries' lines.
        self._written: dict[str, tuple[str, dict[str, str]]] = {}
        # The names of the entries that are older than this run, or than the killed one that it goes on with.
        self._base: dict[str, frozenset[str]] = {}
        self._note = _Note(journal.with_name("lock-order.json"))

    def order_as(self, stages: Iterable[Stage]) -> None:
        """Put new entries in the order of these stages, those of the run."""
        order = names_by_lock_file(stages)
        self._order = lambda: order

    def settle(self) -> None:
        """Keep the order of the written entries, even if others follow: the run has ended by itself."""
        self._base.clear()
        self._note.settle()

    def recover(self) -> int:
        """Write a killed run's journal to those dvc.lock files that nobody has changed since; return how many."""
        entries = 0
        for line in self._journal_lines():
            path, name = line["path"], line["name"]
            entry = _entry_in(line["lines"], name) if _digest(path) == line["before"] else None
            if entry is not None:
                self._pending[path][name] = entry
                entries += 1
        self.flush()
        self._journal.unlink(missing_ok=True)
        return entries

    def record(self, stage: PipelineStage, entry: dict[str, Any] | None = None) -> dict[str, Any]:
        """Record and return a stage's entry, whose outputs are in the cache; raise a YAML error for an invalid one."""
        path, name = lock_file_of(stage), stage.name
        entry = entry or lock_entry_of(stage)
        self._lines[path, name] = lock_entry(name, entry)
        self._pending[path][name] = entry
        if path not in self._digests:
            self._digests[path] = _digest(path)
        line = {"path": path, "name": name, "lines": self._lines[path, name], "before": self._digests[path]}
        append_lines(self._journal, json.dumps(line).encode() + b"\n")
        return entry

    def flush_if_due(self) -> None:
        """Write the group of entries if the last one was written long enough ago."""
        if self._pending and time.monotonic() - self._written_at > self._wait_s:
            self.flush()

    def flush(self) -> None:
        """Write all recorded entries once the files that they name are on disk."""
        started = time.monotonic()
        if self._pending:
            changed = {path: self._changed(path, entries, ()) for path, entries in self._pending.items()}
            texts = {path: text for path, text in changed.items() if text is not None}
            self.sync({Path(path): text for path, text in texts.items()})
            for path in texts:
                self._track(os.path.relpath(path))
        self._pending.clear()
        self._lines.clear()
        self._digests.clear()
        self._journal.unlink(missing_ok=True)
        self._written_at = time.monotonic()
        self._idle_s = min(_PATIENCE * (self._written_at - started), _LONGEST_WAIT_S)
        self._wait_s = max(_SHORTEST_WAIT_S, self._idle_s)

    def until_due_s(self) -> float:
        """Return the seconds until writing takes no more than a few percent of the time."""
        return max(0.0, self._written_at + self._idle_s - time.monotonic()) if self._pending else 0.0

    def forget(self, path: str, names: Collection[str]) -> None:
        """Remove entries, and with the last one the file, as DVC does."""
        if not read_lock_file(path).keys() - set(names):
            Path(path).unlink(missing_ok=True)
            self._base.pop(path, None)
            return
        text = self._changed(path, {}, names)
        if text is not None:
            write_durably(Path(path), text)
            self._track(os.path.relpath(path))

    def _journal_lines(self) -> Iterator[dict[str, Any]]:
        if not self._journal.exists():
            return
        for line in self._journal.read_text(encoding="utf-8", errors="replace").splitlines():
            # A kill or a full disk may have truncated a line; its stage is then run or restored again.
            with suppress(ValueError, RecursionError):
                note = json.loads(line)
                if isinstance(note, dict) and {key: type(note.get(key)) for key in _LINE} == _LINE:
                    yield note

    def _changed(self, path: str, entries: dict[str, Any], gone: Collection[str]) -> str | None:
        """Return a dvc.lock's new text, after a note of it; None if it does not change."""
        before = _read(path)
        text, known = self._written.get(path, (None, None))
        blocks = known if known and before == text else self._blocks(path, before)
        joined = None if blocks is None else self._joined(path, blocks, entries, gone)
        after = self._dumped(path, before, entries, gone) if joined is None else join_lock_file(joined.values())
        if joined is not None:
            self._written[path] = after, joined
        self._base[path] = self._base[path].difference(gone)
        if after == before:
            return None
        self._note.write(path, (before, after), len(self._base[path]), is_plain=joined is not None)
        return after

    def _blocks(self, path: str, text: str | None) -> dict[str, str] | None:
        """Return the lines of each entry; None if the file is not in DVC's layout, for example because of comments."""
        if text is None:
            return {}
        blocks = split_lock_file(text)
        return blocks if blocks is not None and (self._note.knows(path, text) or are_as_dumped(blocks)) else None

    def _joined(
        self, path: str, blocks: dict[str, str], entries: dict[str, Any], gone: Collection[str]
    ) -> dict[str, str] | None:
        """Return the lines of dvc.lock's entries in order; None if that is not enough to number anchors."""
        names = self._ordered(path, list(blocks), entries, gone)
        blocks = blocks | {
            name: self._lines.get((path, name)) or lock_entry(name, entry) for name, entry in entries.items()
        }
        latest = self._latest(path, entries)
        lines = number_anchors(blocks[name] if name == latest else read_back(name, blocks[name]) for name in names)
        return None if lines is None else dict(zip(names, lines, strict=True))

    def _dumped(self, path: str, before: str | None, entries: dict[str, Any], gone: Collection[str]) -> str:
        """Return dvc.lock's new text as DVC changes it, which keeps the comments and layout of the rest."""
        from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

        data: dict[str, Any] = parse_yaml_for_update(before, path) if before else {}
        if not data:
            data["schema"] = "2.0"
        stages = data["stages"] = data.get("stages", {})
        names = self._ordered(path, list(stages), entries, gone)
        for name in gone:
            stages.pop(name, None)
        # Copies: DVC dumps one entry at a time, so that no two have an anchor in common.
        new = {name: deepcopy(entry) for name, entry in entries.items()}
        latest = self._latest(path, entries)
        for name in new.keys() - {latest}:
            lines = lock_entry(name, entries[name])
            if (settled := read_back(name, lines)) != lines:
                new[name] = _entry_in(settled, name)
        stages.update({name: new.pop(name) for name in list(new) if name in self._base[path]})
        for name in names:
            if name not in self._base[path]:
                old = stages.pop(name, None)
                stages.update({name: new.get(name, old)})
        return dumps_yaml(data)

    def _latest(self, path: str, entries: Collection[str]) -> str | None:
        """Return which of these entries `dvc repro` writes last."""
        place = {name: number for number, name in enumerate(self._order().get(path, ()))}
        return max(entries, key=lambda name: place.get(name, len(place)), default=None)

    def _ordered(self, path: str, there: list[str], entries: Iterable[str], gone: Collection[str]) -> list[str]:
        """Return the names of all entries: earlier ones in their places, new ones in the order of `dvc repro`."""
        if path not in self._base:
            count = self._note.count(path, _read(path))
            self._base[path] = frozenset(there[:count])
        place = {name: number for number, name in enumerate(self._order().get(path, ()))}
        names = [name for name in dict.fromkeys([*there, *entries]) if name not in gone]
        return sorted(names, key=lambda name: -1 if name in self._base[path] else place.get(name, len(place)))


class _Note:
    """A record in the state folder about the last written text of each dvc.lock, found by the text's digest.

    It has the number of entries that are older than the run (by default all), and whether all are in DVC's layout.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, path: str, texts: tuple[str | None, str], count: int, is_plain: bool) -> None:
        """Record these facts for the old text and for the new one."""
        digests = [_digest_of(text) for text in texts]
        self._dump(self._read() | {path: {"texts": digests, "older": count, "plain": is_plain}})

    def settle(self) -> None:
        """Count all entries as older than the next ones."""
        notes = self._read()
        if any("older" in each for each in notes.values()):
            self._dump({path: {key: each[key] for key in each if key != "older"} for path, each in notes.items()})

    def knows(self, path: str, text: str) -> bool:
        """Tell whether a dvc.lock is unchanged since it was written here, with entries in DVC's layout."""
        note = self._read().get(path, {})
        return bool(note.get("plain")) and _digest_of(text) == note["texts"][-1]

    def count(self, path: str, text: str | None) -> int | None:
        """Return how many of the first entries are older than the run; None if all are."""
        note = self._read().get(path, {})
        return note.get("older") if _digest_of(text) in note.get("texts", ()) else None

    def _read(self) -> dict[str, dict[str, Any]]:
        notes = read_json(self._path) or {}
        return notes if all(map(_is_note, notes.values())) else {}

    def _dump(self, notes: dict[str, dict[str, Any]]) -> None:
        self._path.write_text(json.dumps(notes), encoding="utf-8")


def _is_note(note: Any) -> bool:
    if not (isinstance(note, dict) and isinstance(note.get("older", 0), int)):
        return False
    return isinstance(note.get("texts"), list) and len(note["texts"]) == 2


def _read(path: str) -> str | None:
    """Return a file's text with its line ends as they are; None if there is no such file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _digest_of(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


def _entry_in(lines: str, name: str) -> dict[str, Any] | None:
    """Return the entry in these lines of dvc.lock; None if there is none."""
    from dvc.utils.serialize import YAMLError, parse_yaml

    try:
        entry = parse_yaml(f"stages:\n{lines}", "")["stages"][name]
    except (YAMLError, LookupError, TypeError):
        return None
    return entry if isinstance(entry, dict) else None


def lock_file_of(stage: Stage) -> str:
    """Return the path of the dvc.lock that holds the stage's entry."""
    return os.path.splitext(stage.path)[0] + ".lock"


def names_by_lock_file(stages: Iterable[Stage]) -> dict[str, list[str]]:
    """Return the names of stages by the dvc.lock that holds their entries, in the order of the stages."""
    names: dict[str, list[str]] = defaultdict(list)
    for stage in stages:
        if in_dvc_yaml(stage):
            names[lock_file_of(stage)].append(stage.name)
    return names


def read_lock_file(path: str | Path) -> dict[str, Any]:
    """Return the entries of a dvc.lock by their stages' names; empty if there is no such file."""
    from dvc.utils.serialize import load_yaml

    stages: dict[str, Any] = load_yaml(str(path)).get("stages", {}) if os.path.exists(path) else {}
    return stages


def parse_lock_file(text: str, where: str) -> dict[str, Any]:
    """Return the entries of a dvc.lock's text; raise DVC's error if it is damaged."""
    from dvc.utils.serialize import parse_yaml

    return dict(parse_yaml(text, where).get("stages", {}))


def parse_dvc_file(text: str, where: str) -> dict[str, Any]:
    """Return the content of a .dvc file; raise DVC's error if it is damaged."""
    from dvc.utils.serialize import parse_yaml

    return dict(parse_yaml(text, where))


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if os.path.exists(path) else ""
