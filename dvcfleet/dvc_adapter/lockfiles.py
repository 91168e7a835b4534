"""Write dvc.lock files: many entries at a time, atomically, and without losing entries if the run is killed.

An entry is written to a journal as soon as its stage ends, and to dvc.lock with the next group, once the files that the
group names are on the disk. A run that finds a journal first writes its entries to dvc.lock.
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
from typing import TYPE_CHECKING, Any

from dvcfleet.disk import write_durably
from dvcfleet.dvc_adapter.lock_entries import join_lock, lock_entry, numbered, split_lock
from dvcfleet.dvc_adapter.stages import lock_entry_of

if TYPE_CHECKING:
    from dvc.stage import PipelineStage

# Write a group after this many times the duration of the last write: writing then takes a few percent of the time.
_PATIENCE = 20
_SHORTEST_WAIT_S = 2.0
# But not later than this: a crash of the machine loses the stages that ended since the last write.
_LONGEST_WAIT_S = 60.0
_LINE = {"path": str, "name": str, "entry": dict, "before": str}  # what a line of the journal holds


class LockFiles:
    """The entries of a repository's dvc.lock files, as this run changes them.

    `order` returns, per lock file, the order of the entries, that of `dvc repro`, so that both write the same file; it
    is called at the first write. `track` is called with each file written. `sync` gives files their new texts once all
    else that was written is on the disk.
    """

    def __init__(
        self,
        journal: Path,
        order: Callable[[], dict[str, list[str]]],
        track: Callable[[str], object],
        sync: Callable[[Mapping[Path, str]], object],
    ) -> None:
        self._journal = journal
        self._order = cache(order)
        self._track = track
        self.sync = sync
        self._digests: dict[str, str] = {}
        self._pending: dict[str, dict[str, Any]] = defaultdict(dict)
        self._wait_s = _SHORTEST_WAIT_S
        self._idle_s = 0.0
        self._written_at = time.monotonic()
        # The text last written to each file, and its entries' lines.
        self._written: dict[str, tuple[str, dict[str, str]]] = {}

    def recover(self) -> int:
        """Write the entries that a killed run left in the journal to dvc.lock; return their number.

        Entries for a dvc.lock that another process has changed since are left out: it may hold newer ones.
        """
        entries = 0
        for line in self._journal_lines():
            path, name, entry, before = line["path"], line["name"], line["entry"], line["before"]
            if _digest(path) == before:
                self._pending[path][name] = entry
                entries += 1
        self.flush()
        self._journal.unlink(missing_ok=True)
        return entries

    def record(self, stage: "PipelineStage", entry: dict[str, Any] | None = None) -> dict[str, Any]:
        """Record and return the entry of a stage whose outputs are in the cache."""
        path, name = lock_path(stage), stage.name
        entry = entry or lock_entry_of(stage)
        self._pending[path][name] = entry
        if path not in self._digests:
            self._digests[path] = _digest(path)
        line = {"path": path, "name": name, "entry": entry, "before": self._digests[path]}
        try:
            text = json.dumps(line)
        except TypeError:
            # A parameter that JSON cannot hold, such as a date: this entry is not in the journal.
            self.flush()
            return entry
        _append_line(self._journal, text)
        return entry

    def flush_if_due(self) -> None:
        """Write the group of entries if the last one was written long enough ago."""
        if self._pending and time.monotonic() - self._written_at > self._wait_s:
            self.flush()

    def flush(self) -> None:
        """Write all entries recorded so far, when the files that they name are on the disk."""
        started = time.monotonic()
        if self._pending:
            changed = {path: self._changed(path, entries, ()) for path, entries in self._pending.items()}
            texts = {path: text for path, text in changed.items() if text is not None}
            self.sync({Path(path): text for path, text in texts.items()})
            for path in texts:
                self._track(os.path.relpath(path))
        self._pending.clear()
        self._digests.clear()
        self._journal.unlink(missing_ok=True)
        self._written_at = time.monotonic()
        self._idle_s = min(_PATIENCE * (self._written_at - started), _LONGEST_WAIT_S)
        self._wait_s = max(_SHORTEST_WAIT_S, self._idle_s)

    def until_due_s(self) -> float:
        """Return for how long writing would take more than a few percent of the time, if nothing else is to be done."""
        return max(0.0, self._written_at + self._idle_s - time.monotonic()) if self._pending else 0.0

    def forget(self, path: str, names: Iterable[str]) -> None:
        """Remove entries."""
        text = self._changed(path, {}, names)
        if text is not None:
            write_durably(Path(path), text)
            self._track(os.path.relpath(path))

    def _journal_lines(self) -> Iterator[dict[str, Any]]:
        if not self._journal.exists():
            return
        for line in self._journal.read_text(errors="replace").splitlines():
            # A kill or a full disk may have truncated a line; its stage is then run or restored again.
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict) and {key: type(found.get(key)) for key in _LINE} == _LINE:
                    yield found

    def _changed(self, path: str, entries: dict[str, Any], gone: Iterable[str]) -> str | None:
        """Return the new text of a dvc.lock; None if it is the old one."""
        before = Path(path).read_text(encoding="utf-8") if os.path.exists(path) else join_lock(())
        text, known = self._written.get(path, ("", None))
        blocks = known if before == text else split_lock(before)
        joined = None if blocks is None else self._joined(path, blocks, entries, gone)
        after = self._dumped(path, entries, gone) if joined is None else join_lock(joined.values())
        if joined is not None:
            self._written[path] = after, joined
        return None if after == before else after

    def _joined(
        self, path: str, blocks: dict[str, str], entries: dict[str, Any], gone: Iterable[str]
    ) -> dict[str, str] | None:
        """Return the lines of dvc.lock's entries, in order; None if there are none, or not enough to number anchors."""
        blocks = blocks | {name: lock_entry(name, entry) for name, entry in entries.items()}
        for name in gone:
            blocks.pop(name, None)
        names = self._ordered(path, blocks)
        lines = numbered(blocks[name] for name in names)
        return dict(zip(names, lines, strict=True)) if lines else None

    def _dumped(self, path: str, entries: dict[str, Any], gone: Iterable[str]) -> str:
        """Return dvc.lock's new text as DVC dumps all of its entries."""
        from dvc.utils.serialize import dumps_yaml, load_yaml

        data: dict[str, Any] = load_yaml(path) if os.path.exists(path) else {"schema": "2.0"}
        # Copies: DVC dumps one entry at a time, so that no two have an anchor in common.
        stages = {**data.get("stages", {}), **{name: deepcopy(entry) for name, entry in entries.items()}}
        for name in gone:
            stages.pop(name, None)
        data["stages"] = {name: stages[name] for name in self._ordered(path, stages)}
        return dumps_yaml(data)

    def _ordered(self, path: str, names: Collection[str]) -> list[str]:
        first = [name for name in self._order().get(path, ()) if name in names]
        return list(dict.fromkeys([*first, *names]))


def lock_path(stage: "PipelineStage") -> str:
    """Return the path of the dvc.lock that holds the stage's entry."""
    return os.path.splitext(stage.path)[0] + ".lock"


def read_lock(path: str | Path) -> dict[str, Any]:
    """Return the entries of a dvc.lock by their stages' names; empty if there is no such file."""
    from dvc.utils.serialize import load_yaml

    found: dict[str, Any] = load_yaml(str(path)).get("stages", {}) if os.path.exists(path) else {}
    return found


def _append_line(path: Path, text: str) -> None:
    """Append a line; start a new line first if a full disk truncated the last one."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(f"{chr(10) if cut_off else ''}{text}\n".encode())


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if os.path.exists(path) else ""
