"""What tells a comparison from others in one git repository: its id, its folder and its worktree."""

from pathlib import Path
from urllib.parse import quote

from dvcfleet.git import git_if_any
from merganser.tasks.identity import read_id

CLONE = "clone"  # in place of an id


def identity(root: Path) -> str:
    """Return a comparison's id, with its folder in the git repository and its worktree where these are not the main.

    A clone on another machine has the same; a copy in another folder, and another worktree, have another.
    """
    folder, own, common = _in_git(root)
    return f"{read_id(root) or CLONE}{folder and f':{quote(folder)}'}{'' if own == common else f'@{quote(own.name)}'}"


def own_identities(root: Path) -> set[str]:
    """Return those that saved runs of a comparison may have.

    Runs of older versions have none. Those that were taken out of a clone (`merganser init --from`) have the clone's.
    """
    own = identity(root)
    return {"", own, CLONE + own.removeprefix(read_id(root) or CLONE)}


def history_of(root: Path) -> tuple[Path, str]:
    """Return where the commits of a comparison are: the git repository, and the folder in it."""
    folder, _, common = _in_git(root)
    return common, folder


def _in_git(root: Path) -> tuple[str, Path, Path]:
    """Return a folder's path in its git repository, git's folder of its worktree, and that of the main one."""
    asked = ("rev-parse", "--show-prefix", "--absolute-git-dir", "--git-common-dir")
    folder, own, common = ((git_if_any(root, *asked) or "").splitlines() + [""] * 3)[:3]
    return folder.rstrip("/"), (root / own).resolve(), (root / common).resolve()
