"""The identity of a comparison among others in one git repository, and the comparisons that share a DVC cache.

The identity is an id, a folder and a worktree. The cache itself lists its comparisons, from the second one on.
"""

from pathlib import Path
from urllib.parse import quote

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.unused import worktrees_of
from dvcfleet.git import git_if_any
from dvcfleet.repository import STATE_FOLDER
from merganser.outputs import replacing
from merganser.tasks.identity import read_id

CLONE = "clone"  # in place of an id


def identity(root: Path) -> str:
    """Return a comparison's id, with its folder in the git repository and its worktree unless these are the main ones.

    A clone on another machine has the same identity. A copy in another folder, or another worktree, has another
    one.
    """
    folder, own, common = _in_git(root)
    return f"{read_id(root) or CLONE}{folder and f':{quote(folder)}'}{'' if own == common else f'@{quote(own.name)}'}"


def own_identities(root: Path) -> set[str]:
    """Return the identities that a comparison's saved runs may have.

    Runs of older versions have none. Runs taken out of a clone (`merganser init --from`) have the clone's.
    """
    own = identity(root)
    return {"", own, CLONE + own.removeprefix(read_id(root) or CLONE)}


def history_of(root: Path) -> tuple[Path, str]:
    """Return the git repository with a comparison's commits, and its folder in it."""
    folder, _, common = _in_git(root)
    return common, folder


def _in_git(root: Path) -> tuple[str, Path, Path]:
    """Return a folder's path in its git repository, git's folder of its worktree, and that of the main one."""
    asked = ("rev-parse", "--show-prefix", "--absolute-git-dir", "--git-common-dir")
    folder, own, common = ((git_if_any(root, *asked) or "").splitlines() + [""] * 3)[:3]
    return folder.rstrip("/"), (root / own).resolve(), (root / common).resolve()


TRIALS = Path(STATE_FOLDER, "trials")  # of a comparison, whose cache they share
LIST = "comparisons"  # in the cache's folder: the absolute path of a comparison a line


def note_sharers(cache: Path, *roots: Path) -> None:
    """Record in a cache which comparisons share it, for the `merganser gc` of each."""
    folders = dict.fromkeys([*_sharers(cache), *roots])
    cache.mkdir(parents=True, exist_ok=True)
    with replacing(cache / LIST) as out:
        out.write("".join(f"{folder}\n" for folder in folders).encode())


def comparisons_sharing_cache(repo: Repo) -> list[Path]:
    """List the folders of other comparisons that share this one's cache, or are its worktrees."""
    root = Path(repo.root_dir).resolve()
    folders = [*worktrees_of(root), *(folder for folder in _sharers(cache_folder(repo)) if _is_there(folder))]
    return [folder for folder in dict.fromkeys(each.resolve() for each in folders) if folder != root]


def folders_sharing_cache(repo: Repo) -> list[Path]:
    """List all other folders with results in the same cache: comparisons, and their trials."""
    root = Path(repo.root_dir).resolve()
    folders = [root, *filter(None, [comparison_of_trial(root)]), *comparisons_sharing_cache(repo)]
    folders += [path.parent for folder in folders for path in sorted((folder / TRIALS).glob("*/.dvc"))]
    return [folder for folder in dict.fromkeys(folders) if folder != root]


def comparison_of_trial(folder: Path) -> Path | None:
    """Return the comparison's folder if a folder is one of its trials, else None."""
    root = folder.parents[len(TRIALS.parts)] if len(folder.parents) > len(TRIALS.parts) else folder
    return root if folder.parent == root / TRIALS else None


def lost_sharers(repo: Repo) -> list[Path]:
    """List folders that share the cache but are missing: deleted, moved, or on a disk that is away."""
    return [folder for folder in _sharers(cache_folder(repo)) if not _is_there(folder)]


def cache_folder(repo: Repo) -> Path:
    """Return the folder of DVC's whole cache: files and the run cache."""
    return Path(repo.cache.legacy.path)


def _sharers(cache: Path) -> list[Path]:
    path = cache / LIST
    return list(map(Path, path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


def _is_there(folder: Path) -> bool:
    return (folder / ".dvc").is_dir()
