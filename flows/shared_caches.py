"""Which comparisons have one DVC cache in common: the cache itself lists those that were begun with another's."""

from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Repo
from merganser.outputs import replacing

LIST = "comparisons"  # in the cache's folder: the absolute path of a comparison a line


def note_sharer(cache: Path, root: Path) -> None:
    """Note that a comparison uses a cache that lies in another one, for the `merganser gc` there."""
    lines = dict.fromkeys([*_lines(cache), str(root)])
    cache.mkdir(parents=True, exist_ok=True)
    with replacing(cache / LIST) as out:
        out.write("".join(f"{line}\n" for line in lines).encode())


def sharers(repo: Repo) -> list[Path]:
    """List the folders of the comparisons that were begun with the cache of this one; some may be gone."""
    root = Path(repo.root_dir).resolve()
    return [Path(line) for line in _lines(cache_folder(repo)) if Path(line).resolve() != root]


def cache_folder(repo: Repo) -> Path:
    """Return the folder of DVC's whole cache: files and the run cache."""
    return Path(repo.cache.legacy.path)


def _lines(cache: Path) -> list[str]:
    path = cache / LIST
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
