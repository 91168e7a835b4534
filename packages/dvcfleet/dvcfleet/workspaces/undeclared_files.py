"""Watch the files that no stage declares as an output, while stages run side by side.

`dvc repro` runs one stage at a time, so that each finds what the one before it wrote. Stages that run at the same time
and rewrite the same file can overwrite, or cut off, what the others wrote. Watched are dvc.yaml, parameter files,
dvclive's files, and files that git tracks. A run keeps copies of dvc.yaml and parameter files, and restores what was
lost there.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dvcfleet.crash_recovery import forget_copies, keep_copies, read_text_file
from dvcfleet.disk import file_state, write_durably
from dvcfleet.dvc_adapter.lock_entries import add_missing, added_values, is_destroyed, parse_map, restore_map
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import tracked_files, unmodified
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params
from dvcfleet.errors import some
from dvcfleet.repository import STATE_FOLDER, state_folder

_DVC_YAML, _DVCLIVE = "dvc.yaml", ("dvclive/metrics.json", "dvclive/params.yaml")
_OF_THE_ENGINE = ("dvc.lock", ".gitignore")  # what a run itself writes, with .dvc files
_YAML = (".yaml", ".yml")
# The sections of a dvc.yaml to which dvclive adds: what a stage added there during the run nobody else takes away.
_OF_DVCLIVE = ("params", "metrics", "plots", "artifacts")
# Since when nobody writes to a file any more (seconds): it can be restored while stages run.
_QUIET_S = 1.0
# The share of a run's time that looking at tracked files may take.
_SHARE = 0.01
_REMEDY = "let them take turns (meta: {dvcfleet: {exclusive: NAME}}), or declare their outputs"


@dataclass
class _Copy:
    """A file's text as it was when no two stages could have written to it, and what was added to it since."""

    text: str
    latest: str
    news: dict[str, Any] = field(default_factory=dict)


class UndeclaredFiles:
    """The watch over a run's undeclared files; `groups`: which stages take turns, so that one accounts for a change.

    As a context: when it ends, all is looked at for the last time, and `say` is called with what was found.
    """

    def __init__(self, repo: Repo, groups: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._repo, self._groups, self._say = repo, groups, say
        self._root, self._state = Path(repo.root_dir), state_folder(repo)
        self._running: dict[str, None] = {}
        self._since: dict[str, None] = {}  # the stages that ran since the last look
        self._since_tracked: dict[str, None] = {}
        self._together = self._together_tracked = False
        self._next_tracked = 0.0
        self._damaged: set[str] = set()
        self._lost: dict[str, dict[str, None]] = {}
        self._writers: dict[str, dict[str, None]] = {}

    def __enter__(self) -> "UndeclaredFiles":
        outputs = {out.fs_path for out in self._repo.index.outs}
        small = dict.fromkeys(path for path in self._small() if path not in outputs)
        self._tracked = {path: file_state(path) for path in self._others(outputs) if path not in small}
        self._files = {path: file_state(path) for path in small}
        texts = {path: read_text_file(Path(path)) for path in small if not path.endswith(_DVCLIVE)}
        self._copies = {path: _Copy(text, text) for path, text in texts.items() if text is not None}
        self._keep_copies(self._copies)
        return self

    def __exit__(self, *_: object) -> None:
        self._look(at_end=True)
        self._look_at_tracked()
        forget_copies(self._state)
        self._tell()

    @property
    def any_lost(self) -> bool:
        """Whether stages destroyed what others, or the user, wrote."""
        return bool(self._lost)

    def began(self, name: str) -> None:
        """Note that a stage's command has started."""
        if self._running.keys() - {name}:
            self._together = self._together_tracked = True
        for stages in (self._running, self._since, self._since_tracked):
            stages[name] = None

    def ended(self, name: str) -> None:
        """Note that a stage's command has ended, and look at the files."""
        self._look()
        if time.monotonic() >= self._next_tracked:
            self._look_at_tracked()
        self._running.pop(name, None)
        self._since = dict(self._running)
        self._together = len(self._running) > 1

    def _small(self) -> Iterator[str]:
        """Find the dvc.yaml and parameter files of stages, and dvclive's files where stages work."""
        for stage in self._repo.index.stages:
            if in_dvc_yaml(stage):
                yield stage.path
                yield from (os.path.join(stage.wdir, name) for name in (_DVC_YAML, *_DVCLIVE))
            yield from (dep.fs_path for dep in stage.deps if is_params(dep))

    def _others(self, outputs: set[str]) -> Iterator[str]:
        state = f"{self._root / STATE_FOLDER}/"
        for path in tracked_files(self._repo):
            is_own = path.endswith((*_OF_THE_ENGINE, ".dvc")) or path.startswith(state)
            if not is_own and not any(str(above) in outputs for above in (path, *Path(path).parents)):
                yield path

    def _keep_copies(self, paths: Mapping[str, _Copy]) -> None:
        of_stages = {Path(path): copy.text for path, copy in paths.items() if path.endswith(_DVC_YAML)}
        keep_copies(self._root, self._state, of_stages)

    def _look(self, at_end: bool = False) -> None:
        writers = self._candidates(self._since) if self._together else []
        for path, before in self._files.items():
            seen = file_state(path)
            if seen == before and path not in self._damaged:
                continue
            self._files[path] = seen
            copy = self._copies.get(path)
            if copy is None:
                self._note(path, writers)
            elif len(writers) > 1 or path in self._damaged:
                self._review(path, copy, writers, at_end)
            else:
                self._accept(path, copy)

    def _look_at_tracked(self) -> None:
        began = time.monotonic()
        writers = self._candidates(self._since_tracked) if self._together_tracked else []
        for path, before in self._tracked.items():
            seen = file_state(path)
            if seen != before:
                self._tracked[path] = seen
                self._note(path, writers)
        now = time.monotonic()
        self._next_tracked = now + (now - began) / _SHARE
        self._since_tracked = dict(self._running)
        self._together_tracked = len(self._running) > 1

    def _candidates(self, stages: Mapping[str, None]) -> list[str]:
        """List the stages that may have written: those that take turns, if there are any, one of each group."""
        in_turn = {self._groups[name]: name for name in stages if name in self._groups}
        return list(in_turn.values()) or list(stages)

    def _note(self, path: str, writers: list[str]) -> None:
        if len(writers) > 1:
            self._writers.setdefault(path, {}).update(dict.fromkeys(writers))

    def _accept(self, path: str, copy: _Copy) -> None:
        """Take a change for what one stage wrote, as under `dvc repro`."""
        text = read_text_file(Path(path))
        if text is not None:
            self._copies[path] = _Copy(text, text)
            self._keep_copies({path: self._copies[path]})

    def _review(self, path: str, copy: _Copy, writers: list[str], at_end: bool) -> None:
        """Look for what was in a file, or was added to it, and is gone; restore it once nobody writes to the file."""
        text = read_text_file(Path(path))
        if text == copy.latest and path not in self._damaged:
            return
        self._note(path, writers)
        copy.latest = text or ""
        content, before = _content(path, text), _content(path, copy.text)
        news = {key: value for key, value in (added_values(content, before) or {}).items() if key in _OF_DVCLIVE}
        add_missing(copy.news, news if path.endswith(_DVC_YAML) else {})
        destroyed = is_destroyed(content, before)
        whole = content or {}
        lost = [*add_missing(whole, before if destroyed else {}), *add_missing(whole, copy.news)]
        self._damaged.discard(path)
        if lost and (at_end or _age(path) > _QUIET_S):
            begin = copy.text if destroyed else copy.latest
            copy.latest = restore_map(begin, whole, copy.news) if path.endswith(_YAML) else begin
            self._restore(path, copy.latest, lost)
        elif lost:
            self._damaged.add(path)

    def _restore(self, path: str, text: str, lost: list[str]) -> None:
        self._lost.setdefault(path, {}).update(dict.fromkeys(lost))
        try:
            write_durably(Path(path), text)
        except OSError as error:
            kept = self._state / f"restored-{Path(path).name}"
            kept.write_text(text, encoding="utf-8")
            self._say(f"{self._name(path)} could not be restored ({error.strerror}): its text is {kept}")
        self._files[path] = file_state(path)

    def _tell(self) -> None:
        for path, lost in self._lost.items():
            stages = some(list(self._writers.get(path, {})), 6)
            self._say(
                f"{self._name(path)} lost {some(list(lost), 6)} while these ran at the same time: {stages}; it is "
                f"restored, but more of their output there may be missing: {_REMEDY}"
            )
        same = unmodified(self._repo, [path for path in self._writers if path in self._tracked])
        changed = [path for path in self._writers if path not in self._lost and path not in same]
        if changed:
            stages = some(list(dict.fromkeys(name for path in changed for name in self._writers[path])), 6)
            names = some([self._name(path) for path in changed], 6)
            self._say(
                f"{names} changed while these ran at the same time: {stages}. No stage declares "
                f"{'it as an output' if len(changed) == 1 else 'them as outputs'}: if several write the same file, one "
                f"may have overwritten another's; {_REMEDY}"
            )

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root)


def _age(path: str) -> float:
    """Return how long ago a file was written (seconds)."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return _QUIET_S + 1


def _content(path: str, text: str | None) -> dict[str, Any] | None:
    """Return the map in a file of YAML; for another format, a map that is empty if the text is."""
    if text is None:
        return None
    return parse_map(text) if path.endswith(_YAML) else {"its text": text} if text.strip() else {}
