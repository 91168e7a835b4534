"""Comparisons beside this one: a git worktree each, with DVC's cache in common, so that several run at once."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dvcfleet.disk import sync_file_systems
from dvcfleet.git import GitError, git, git_if_any, own_environment
from dvcfleet.repository import STATE_FOLDER, opened
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows import kept_lock_files
from merganser.flows.suites import EXAMPLES, IGNORED, PARAMS, check_name, sources_of, use
from merganser.outputs import PARTIAL, one_writer, refuse_existing
from merganser.sources.pointers import POINTER_SUFFIXES

LOCAL_CONFIG = Path(".dvc/config.local")
OWN = (PARAMS, Path("dvc.lock"), IGNORED)  # what a comparison changes itself


def new(root: Path, folder: Path, suite: str | None = None) -> list[str]:
    """Start another comparison in a folder, on a branch of its name: a suite's, or this one's as it stands.

    Its code is that of the last commit; what either computes the other restores. Returns what there is to say.
    It has its name once it is whole. Raises InputError where there is no commit, the folder or the branch is taken, or
    another process starts one there.
    """
    folder, root = folder.absolute(), root.resolve()
    refuse_existing(folder)
    if folder.resolve().is_relative_to(root):
        raise InputError(
            f"{folder}: lies in this comparison, whose DVC would look for stages there; name another place"
        )
    if suite is not None:
        check_name(root, suite)
    if not _succeeds(root, "cat-file", "-e", "HEAD:./.dvc/config"):
        raise InputError(f"{root}: git has no commit with .dvc/config, which another comparison starts from; commit it")
    branch = folder.name
    with one_writer(folder) as place:
        _forget_killed(root, place, branch)
        refuse_existing(folder)
        if _succeeds(root, "show-ref", "--verify", f"refs/heads/{branch}"):
            raise InputError(f"{folder}: git refuses: a branch named {branch!r} already exists")
        draft = draft_of(place)
        with _worktree(root, folder, draft):
            share(root, draft)
            if suite is not None:
                with opened(draft):
                    use(draft, suite, force=True)
            links = list(link_sources(root, draft))
            _do(folder, draft, "switch", "-q", "-c", branch)
            if place.exists():
                place.rmdir()
            _do(folder, root, "worktree", "move", str(draft), str(place))
        sync_file_systems([root, place])
    lines = [f"{folder}: on the git branch {branch}, with the DVC cache of {root}"]
    lines += [f"{link} leads to this comparison's, which neither git nor DVC keeps" for link in links]
    if missing := _uncommitted(root):
        lines.append(f"its code is that of the last commit, without the changes here of {', '.join(missing)}")
    return lines


def draft_of(folder: Path) -> Path:
    """Return where a comparison is made before it has its name."""
    return folder.with_name(f".{folder.name}.{PARTIAL}")


@contextmanager
def _worktree(root: Path, folder: Path, draft: Path) -> Iterator[None]:
    """Make a worktree of the last commit, on no branch; take it away where the block fails."""
    _do(folder, root, "worktree", "add", "--detach", str(draft))
    try:
        yield
    except BaseException:
        _succeeds(root, "worktree", "remove", "--force", str(draft))
        raise


def _forget_killed(root: Path, folder: Path, branch: str) -> None:
    """Have git forget the worktree of a comparison whose start was killed, and its branch if it had one already."""
    draft = draft_of(folder)
    for entry in _do(folder, root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = entry.splitlines()
        if f"worktree {draft}" in lines:
            _succeeds(root, "worktree", "remove", "--force", str(draft))
            if f"branch refs/heads/{branch}" in lines:
                _succeeds(root, "branch", "-D", branch)


def share(root: Path, folder: Path) -> None:
    """Give a new worktree this one's DVC cache, choices, and records of what is computed."""
    if (root / LOCAL_CONFIG).is_file():
        shutil.copy(root / LOCAL_CONFIG, folder / LOCAL_CONFIG)
    with opened(root) as repo:
        cache = repo.cache.legacy.path  # the whole: files and the run cache
    with opened(folder) as repo, repo.config.edit("local") as config:
        config["cache"]["dir"] = cache
    lock_files = [path.relative_to(root) for path in (root / EXAMPLES).glob("**/dvc.lock")]
    kept = [path.relative_to(root) for path in (root / STATE_FOLDER / kept_lock_files.FOLDER).glob("*.lock")]
    for path in (*OWN, *lock_files, *kept):
        if (root / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, folder / path)


def link_sources(root: Path, folder: Path) -> Iterator[Path]:
    """Link what the comparison reads from the root and git does not bring: models and data in folders of one's own.

    Pointer files are copied: a run writes commits into them.
    """
    if not (folder / PARAMS).is_file():
        return
    with opened(folder) as repo:
        made = {Path(out.fs_path) for out in repo.index.outs}
    for source in sources_of(load_params(folder / PARAMS)):
        path = folder / source
        is_made = any(out == path or out in path.parents for out in made)
        if not source.is_absolute() and not path.exists() and not is_made and (root / source).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in POINTER_SUFFIXES:
                shutil.copyfile(root / source, path)
            else:
                path.symlink_to(root / source)
                yield source


def _uncommitted(root: Path) -> list[str]:
    """List the tracked files with changes that a worktree of the last commit does not have."""
    changed = _do(root, root, "diff", "--name-only", "--relative", "HEAD").splitlines()
    return [name for name in changed if Path(name) not in OWN]


def _do(folder: Path, root: Path, *args: str) -> str:
    """Have git do something for a comparison; return what it prints, or raise InputError with why it refuses."""
    try:
        return git(root, *args, environment=own_environment())
    except GitError as error:
        reason = str(error).rpartition("\n")[2].removeprefix("fatal: ")
        raise InputError(f"{folder}: git refuses: {reason}") from error


def _succeeds(root: Path, *args: str) -> bool:
    """Have git do something if it can; tell whether it did."""
    return git_if_any(root, *args, environment=own_environment()) is not None
