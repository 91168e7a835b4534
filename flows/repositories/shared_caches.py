"""Which comparisons have one DVC cache in common: the cache itself lists them, once one was begun with another's."""

from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.unused import worktrees_of
from dvcfleet.repository import STATE_FOLDER
from merganser.outputs import replacing

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
    found = [*worktrees_of(root), *(folder for folder in _sharers(cache_folder(repo)) if _is_there(folder))]
    return [folder for folder in dict.fromkeys(each.resolve() for each in found) if folder != root]


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
