"""The DVC remote as the place where machines that share nothing else leave and find what stages read and wrote.

It may be away for a while: whatever is asked of it is asked again, for some minutes, and whoever waits is told.
"""

import errno
import logging
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dvcfleet.dvc_adapter.lock_entries import write_yaml
from dvcfleet.errors import UserError
from dvcfleet.repository import state_folder

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

T = TypeVar("T")

# An empty folder where a remote was mounted looks like a remote that holds nothing; this file tells them apart.
_MARK = "dvcfleet"
_WAITS_S = (1, 2, 4, 8, 15, *[30] * 19)
# What does not pass by waiting.
_LASTING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})
_RUN_NAME = re.compile("[0-9a-f]{64}")


class AwayError(OSError):
    """The DVC remote does not answer."""


class MissingError(OSError):
    """The DVC remote answers, and does not hold what it is asked for."""


def has_remote(repo: "Repo") -> bool:
    """Tell whether the repository has a DVC remote to fetch from and push to unless told otherwise."""
    return bool(repo.config["core"].get("remote"))


class ObjectStore:
    """The repository's default DVC remote; `tell` gets a line when it has to be waited for.

    Raises UserError for a remote that keeps files by version and not by content.
    """

    def __init__(self, repo: "Repo", tell: Callable[[str], None]) -> None:
        self._repo, self._tell = repo, tell
        self._remote = repo.cloud.get_remote()
        if self._remote.fs.version_aware or self._remote.worktree:
            raise UserError(
                f"DVC remote {self._remote.name}: nodes need one that keeps files by their content; "
                "take version_aware and worktree out of its configuration, or name another by `dvc remote default`"
            )

    def open(self) -> None:
        """Make the remote known as one that nodes use; wait for it where it was known before and is away now."""
        known = state_folder(self._repo) / "remote"
        if not (known.exists() and known.read_text() == self._mark):
            self._ask("be made ready", self._put_mark)
            known.write_text(self._mark)
        self._patiently("answer", lambda: None)

    def held(self, values: Collection[str]) -> set[str]:
        """Return those of the hashes that the remote holds; of a folder's, all that is in it."""
        return self._patiently(
            "say what it holds", lambda: set(self._remote.odb.oids_exist(values)) if values else set()
        )

    def push(self, outs: Iterable["Output"]) -> None:
        """Bring outputs that are in DVC's cache to the remote, less what it has; a folder's listing last."""
        wanted = _objects(outs)

        def push_all() -> None:
            self._move("pushed", self._repo.cloud.push, wanted)
            self._look()

        self._patiently("take outputs", push_all)

    def fetch(self, outs: Collection["Output"]) -> None:
        """Bring outputs into DVC's cache, less what it has. Raises MissingError for one that is not to be had."""

        def fetch_all() -> None:
            self._move("fetched", self._repo.cloud.pull, _objects(outs))
            for out in outs:
                if out.changed_cache():
                    raise MissingError(f"the DVC remote {self._remote.name} does not hold {out} ({out.hash_info})")

        self._patiently("give inputs", fetch_all)

    def fetch_listing(self, folder: "HashInfo") -> None:
        """Bring the listing of an output folder into DVC's cache, and nothing of what it lists."""

        def fetch_it() -> None:
            self._move("fetched", self._repo.cloud.pull, {folder})
            if not self._repo.cache.local.exists(folder.value):
                raise MissingError(f"the DVC remote {self._remote.name} does not hold the listing {folder.value}")

        if not self._repo.cache.local.exists(folder.value):
            self._patiently("give the listing of a folder", fetch_it)

    def find_run(self, key: str) -> dict[str, Any] | None:
        """Return the entry that somebody left under this key of the run cache, if the remote holds its outputs too."""
        return self._patiently("say what has run", lambda: self._find_run(key))

    def leave_run(self, key: str, entry: dict[str, Any]) -> None:
        """Note in the remote's run cache what a stage's command made; its outputs are to be there already."""
        from dvc.stage.cache import _get_cache_hash

        fs = self._remote.fs
        path = fs.join(self._run_folder(key), _get_cache_hash(dict(entry)))

        def leave() -> None:
            with tempfile.TemporaryDirectory() as folder:
                text = Path(folder) / "entry"
                write_yaml(str(text), entry)
                fs.makedirs(fs.parent(path), exist_ok=True)
                fs.put_file(str(text), path)
            self._look()

        self._patiently("note what has run", leave)

    def _find_run(self, key: str) -> dict[str, Any] | None:
        from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
        from dvc.utils.serialize import YAMLError, parse_yaml
        from voluptuous import Invalid

        fs, folder = self._remote.fs, self._run_folder(key)
        if not fs.exists(folder):
            return None
        for path in sorted(fs.find(folder)):
            if not _RUN_NAME.fullmatch(fs.name(path)):
                continue
            with fs.open(path, "r", encoding="utf-8") as file:
                text = file.read()
            try:
                entry: dict[str, Any] = COMPILED_LOCK_FILE_STAGE_SCHEMA(parse_yaml(text, path))
            except (YAMLError, Invalid):
                continue
            values = {out["md5"] for out in entry.get("outs", [])}
            if len(self._remote.odb.oids_exist(values)) == len(values):
                return entry
        return None

    def _run_folder(self, key: str) -> str:
        # Where `dvc push --run-cache` would put it.
        return str(self._remote.fs.join(self._remote.path, "runs", key[:2], key))

    def _move(self, done: str, move: Callable[..., Any], objects: set["HashInfo"]) -> None:
        with _Heard() as errors:
            failed = move(objects).failed if objects else ()
        if failed:
            raise errors[0] if errors else AwayError(f"{len(failed)} files could not be {done}")

    @property
    def _mark(self) -> str:
        return str(self._remote.fs.join(self._remote.path, _MARK))

    def _put_mark(self) -> None:
        if not self._remote.fs.exists(self._mark):
            self._remote.fs.makedirs(self._remote.path, exist_ok=True)
            with self._remote.fs.open(self._mark, "w") as file:
                file.write("Nodes of Merganser leave and find their stages' inputs and outputs here.\n")

    def _look(self) -> None:
        if not self._remote.fs.exists(self._mark):
            raise AwayError(f"there is no {_MARK} in it, as if it were not mounted")

    def _patiently(self, what: str, action: Callable[[], T]) -> T:
        """Do what needs the remote, and wait as long as it is away."""

        def look_and_act() -> T:
            self._look()
            return action()

        return self._ask(what, look_and_act)

    def _ask(self, what: str, action: Callable[[], T]) -> T:
        for wait_s in _WAITS_S:
            try:
                return action()
            except MissingError:
                # Not there, or is the whole remote away?
                if self._answers():
                    raise
                error: Exception = AwayError("it is away")
            except Exception as caught:  # each remote's library has errors of its own
                if isinstance(caught, OSError) and caught.errno in _LASTING:
                    raise
                error = caught
            self._tell(f"waiting for the DVC remote {self._remote.name} to {what}: {error}; next try in {wait_s} s")
            time.sleep(wait_s)
        return action()

    def _answers(self) -> bool:
        try:
            self._look()
        except Exception:
            return False
        return True


def _objects(outs: Iterable["Output"]) -> set["HashInfo"]:
    """Return all objects of outputs: files, and of a folder its listing too, which is fetched for that."""
    used: set[HashInfo] = set()
    for out in outs:
        # With `force`, DVC leaves out a folder whose listing it cannot get, instead of asking at the terminal.
        used = used.union(*out.get_used_objs(force=True).values())
    return used


class _Heard(logging.Handler):
    """Hears the errors that DVC logs for single files, and nothing else tells of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._errors: list[Exception] = []
        self._logger = logging.getLogger("dvc_data.hashfile.transfer")
        # A traceback for each file is for nobody: what matters of it is in our own message.
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            self._errors.append(record.exc_info[1])

    def __enter__(self) -> list[Exception]:
        self._logger.addHandler(self)
        return self._errors

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
