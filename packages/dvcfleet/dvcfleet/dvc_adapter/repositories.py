"""DVC's repositories: git, and the data that DVC keeps open or cached during a run.

DVC's errors about damaged files get the file's name and a remedy. DVC's databases of hashes and links, outside the
repository, only save time: a damaged one, on which DVC would stop with an SQLite error, is removed and rebuilt.
"""

import os
import re
import shutil
import sqlite3
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from dvcfleet.disk import is_damaged
from dvcfleet.dvc_adapter.internals import otherwise, under_git
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError, in_one_line, some
from dvcfleet.fast_paths import no_shortcut, replaced
from dvcfleet.git import GitError, git, git_if_any
from dvcfleet.terminal.failures import is_a, system_words

_PARSING = "dvc.utils.serialize._common.ParseError"
_PARAMETERS = "dvc.dependency.param.BadParamFileError"
_INVALID = "dvc.utils.strictyaml.YAMLValidationError"
_OF_FILES = (
    _INVALID,
    "dvc.utils.strictyaml.YAMLSyntaxError",
    _PARSING,
    "dvc.exceptions.EncodingError",
    "dvc.stage.exceptions.StageFileIsNotDvcFileError",
    "dvc.dvcfile.LockfileCorruptedError",
)


def with_cause(error: BaseException) -> str:
    """Return an error's message on one line; for an unreadable file also the line, and what is wrong there.

    DVC's command line prints these below the message. An error of the system gets its remedy.
    """
    if isinstance(error, OSError):
        return " ".join(system_words(error).split())
    text, cause = in_one_line(error), error.__cause__
    if is_a(error, _INVALID):
        return f"{text} ({some(list(_invalid(error)))})"
    if cause is None or not is_a(error, _PARSING, _PARAMETERS):
        return text
    mark = getattr(cause, "problem_mark", None)  # of an error of the YAML library's
    where = f"line {mark.line + 1}, column {mark.column + 1}: {getattr(cause, 'problem', '')}" if mark else ""
    return f"{text} ({where or with_cause(cause)})"


def _invalid(error: Any) -> Iterable[str]:
    """Return what is wrong with the values in a file of valid syntax."""
    from dvc.utils.serialize import parse_yaml_for_update

    try:
        content = parse_yaml_for_update(error.text, error.path)
    except RecursionError:
        yield "nested too deeply"
        return
    for detail in error.exc.errors:
        keys = ".".join(map(str, detail.path))
        yield f"line {_line(content, detail.path)}, {keys}: {detail.error_message}" if keys else detail.error_message


def _line(content: Any, keys: Iterable[Any]) -> int:
    """Return the line of the value at these keys, or of the last existing key."""
    line = 0
    for key in keys:
        try:
            line = content.lc.data[key][0]
            content = content[key]
        except (AttributeError, LookupError, TypeError):
            break
    return line + 1


def words_of(error: Exception) -> str:
    """Return the message of a DVC exception, with the file and the remedy if DVC does not give them."""
    text = with_cause(error) if is_a(error, _PARSING, _PARAMETERS, _INVALID) else str(error)
    if is_a(error, "dvc.config.ConfigError"):
        return f"{text} (in .dvc/config, .dvc/config.local, or the configuration of DVC in your home)"
    if text.endswith("is not a git repository"):
        return f"{text}; `git init` makes it one, or `dvc config core.no_scm true` has DVC work without git"
    match = re.search(r"[^\s'\"]*dvc\.lock", text) if is_a(error, *_OF_FILES) else None
    if not match:
        return text
    path = match[0].removeprefix("./")
    return (
        f"{text}: it is damaged; `git checkout {path}` restores the committed one, "
        "or remove it: DVC restores the results that are in its cache"
    )


_DATABASES = ("links/cache.db", "hashes/local/cache.db")


@contextmanager
def whole_databases() -> Iterator[None]:
    """Have DVC open its databases on first use in the block, since that takes long, and remove damaged ones before."""
    from dvc_data.hashfile import state

    opened, opening = state.State, RLock()
    if opened.__module__ == __name__:  # in such a block already
        yield
        return

    class OfWholeDatabases(opened):  # type: ignore[misc, valid-type]
        """DVC's state."""

        is_open = False

        def __init__(self, root_dir: str, tmp_dir: str | None = None, ignore: Any = None) -> None:
            if tmp_dir:
                _remove_damaged(Path(tmp_dir))
            super().__init__(root_dir, None, ignore)  # opens none
            self.tmp_dir = tmp_dir

        def __getattr__(self, name: str) -> Any:
            """Open them when something is asked for that DVC has only then."""
            with opening:  # threads that store outputs ask at the same time
                if vars(self).get("tmp_dir") and not self.is_open:  # a state without a folder has no databases
                    self.is_open = True
                    try:
                        super().__init__(self.root_dir, self.tmp_dir, self.ignore)
                    except BaseException:
                        self.is_open = False
                        raise
            if name in vars(self):
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def close(self) -> None:
            """Close them if they are open."""
            if self.is_open:
                super().close()

    with replaced(state, "State", OfWholeDatabases):
        yield


def _remove_damaged(folder: Path) -> None:
    for name in _DATABASES:
        path = folder / name
        if path.exists() and is_damaged(path):
            shutil.rmtree(path.parent)
            print(f"{path} was damaged: DVC recreates it", file=sys.stderr)


@lru_cache(maxsize=1)
def tracked_files(repo: Repo) -> tuple[str, ...]:
    """Return the files that git tracked when first asked; if git fails, by its index as DVC reads it."""
    if not under_git(repo):
        return ()
    root = repo.scm.root_dir
    names = git_if_any(root, "ls-files", "-z")
    if names is not None:
        return tuple(os.path.join(root, name) for name in names.split("\0")[:-1])
    return tuple(os.path.join(root, os.fsdecode(name)) for name in repo.scm.dulwich.repo.open_index())


@lru_cache(maxsize=1)
def tracked_paths(repo: Repo) -> frozenset[str]:
    """Return the files that git tracked when the opened repository was first asked, and their folders."""
    files = map(Path, tracked_files(repo))
    return frozenset(str(path) for file in files for path in (file, *file.parents))


def is_committed(repo: Repo, path: str) -> bool:
    """Tell whether a file or folder is in git unchanged; False without a git program."""
    if not under_git(repo) or path not in tracked_paths(repo):
        return False
    return git_if_any(repo.scm.root_dir, "status", "--porcelain", "--ignored", "--", path) == ""


def git_refusal(repo: Repo) -> str | None:
    """Return why git does not work in a repository under git; None if it works, or without git."""
    try:
        if under_git(repo):
            git(repo.scm.root_dir, "rev-parse", "--git-dir")
    except GitError as error:
        return str(error)
    return None


def unmodified(repo: Repo, paths: Collection[str]) -> set[str]:
    """Return the tracked files among these that equal git's index; empty without a git program."""
    if not paths or not under_git(repo):
        return set()
    root = repo.scm.root_dir
    changed = git_if_any(root, "diff", "--name-only", "--no-ext-diff", "-z", "--", ":/")
    names = None if changed is None else {os.path.join(root, name) for name in changed.split("\0")}
    return set() if names is None else {path for path in paths if path not in names}


def forget_index(repo: Repo) -> None:
    """Make DVC reread dvc.yaml, dvc.lock and .dvcignore."""
    for name in ("index", "dvcignore"):
        vars(repo).pop(name, None)


def _open_git_again(repo: Repo) -> None:
    from dvc.scm import SCM

    repo.scm_context.scm = vars(repo)["scm"] = SCM(repo.root_dir)


@otherwise("writing .gitignore files", _open_git_again)
def forget_ignored(repo: Repo) -> None:
    """Make DVC reread .gitignore files."""
    repo.scm._reset()


@otherwise("noting links", lambda repo: no_shortcut())
def links_open(repo: Repo) -> AbstractContextManager[Any]:
    """Keep DVC's table of links open: DVC closes it after each entry, and the last close checkpoints its journal."""
    connection = sqlite3.connect(os.path.join(repo.state.links.directory, "cache.db"))
    connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    return closing(connection)


@otherwise("linking outputs", no_shortcut)
def links_tested_once() -> AbstractContextManager[None]:
    """Have DVC test the possible kinds of links once per cache and file system, not once per output."""
    from dvc_data.hashfile import checkout

    test, known = checkout.test_links, dict[tuple[Any, ...], list[str]]()

    def test_once(links: list[str], from_fs: Any, from_path: str, to_fs: Any, to_path: str) -> list[str]:
        to_fs.makedirs(to_fs.parent(to_path))
        key = (*links, from_path, os.stat(to_fs.parent(to_path)).st_dev) if to_fs.protocol == "local" else None
        kinds = known.get(key) if key else None
        if not kinds:
            kinds = test(links, from_fs, from_path, to_fs, to_path)
            if key:
                known[key] = kinds
        return list(kinds)

    return replaced(checkout, "test_links", test_once)


@otherwise("looking up outputs in git", lambda repo: no_shortcut())
def git_index_read_once(repo: Repo) -> AbstractContextManager[None]:
    """Have DVC read git's index again only when it has changed, not for each stored output."""
    if not under_git(repo):
        return no_shortcut()
    root, git_repo, known = repo.scm.root_dir, repo.scm.dulwich.repo, dict[tuple[int, ...], list[bytes]]()
    getattr(repo.scm, "is_tracked")  # noqa: B009 - no protocol has it

    def is_tracked(path: str) -> bool:
        try:
            info = os.stat(git_repo.index_path())
        except FileNotFoundError:  # nothing was added yet
            return False
        state = (info.st_ino, info.st_size, info.st_mtime_ns)
        if state not in known:
            known.clear()
            try:
                known[state] = sorted(git_repo.open_index())
            except OSError:
                raise
            except Exception as error:  # of a damaged file: half a dozen kinds
                advice = "remove it, and `git reset` makes it again"
                raise UserError(f"{git_repo.index_path()} is damaged ({in_one_line(error)}); {advice}") from error
        names, name = known[state], os.fsencode(os.path.relpath(path, root))
        at, inside = bisect_left(names, name), bisect_left(names, name + b"/")
        return names[at : at + 1] == [name] or (inside < len(names) and names[inside].startswith(name + b"/"))

    is_tracked(root)  # what is missing is found out here
    return replaced(repo.scm, "is_tracked", is_tracked)


def experiment_ref(commit: str, name: str) -> str:
    """Return the git reference of an experiment's name on top of a commit."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"
