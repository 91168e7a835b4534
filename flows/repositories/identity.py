"""What tells a comparison from others in one git repository: its id, folder and worktree; and which share a DVC cache.

The cache itself lists the comparisons that share it, once one was begun with another's.
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


TRIALS = Path(STATE_FOLDER, "trials")  # of a comparison, whose cache they share
LIST = "comparisons"  # in the cache's folder: the absolute path of a comparison a line


def note_sharers(cache: Path, *roots: Path) -> None:
    """Note that comparisons share a cache, for the `merganser gc` of each."""
    folders = dict.fromkeys([*_sharers(cache), *roots])
    cache.mkdir(parents=True, exist_ok=True)
    with replacing(cache / LIST) as out:
        out.write("".join(f"{folder}\n" for folder in folders).encode())


def comparisons_sharing_cache(repo: Repo) -> list[Path]:
    """List the folders of the other comparisons that share the cache of this one, or that are its worktrees."""
    root = Path(repo.root_dir).resolve()
    folders = [*worktrees_of(root), *(folder for folder in _sharers(cache_folder(repo)) if _is_there(folder))]
    return [folder for folder in dict.fromkeys(each.resolve() for each in folders) if folder != root]


def folders_sharing_cache(repo: Repo) -> list[Path]:
    """List the other folders whose results are in the same cache: comparisons, and the trials of all."""
    root = Path(repo.root_dir).resolve()
    folders = [root, *filter(None, [comparison_of_trial(root)]), *comparisons_sharing_cache(repo)]
    folders += [path.parent for folder in folders for path in sorted((folder / TRIALS).glob("*/.dvc"))]
    return [folder for folder in dict.fromkeys(folders) if folder != root]


def comparison_of_trial(folder: Path) -> Path | None:
    """Return the comparison's folder if a folder is one of its trials, else None."""
    root = folder.parents[len(TRIALS.parts)] if len(folder.parents) > len(TRIALS.parts) else folder
    return root if folder.parent == root / TRIALS else None


def lost_sharers(repo: Repo) -> list[Path]:
    """List the folders that share the cache, and that are not there: removed, moved, or on a disk that is away."""
    return [folder for folder in _sharers(cache_folder(repo)) if not _is_there(folder)]


def cache_folder(repo: Repo) -> Path:
    """Return the folder of DVC's whole cache: files and the run cache."""
    return Path(repo.cache.legacy.path)


def _sharers(cache: Path) -> list[Path]:
    path = cache / LIST
    return list(map(Path, path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


def _is_there(folder: Path) -> bool:
    return (folder / ".dvc").is_dir()
