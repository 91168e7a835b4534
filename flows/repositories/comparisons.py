"""Give a new comparison another one's DVC cache, choices and records, and links to models outside git."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.record.environments import CHANGES, ENVIRONMENTS
from dvcfleet.record.ledger import LEDGER, LEDGERS, own_lines
from dvcfleet.repository import STATE_FOLDER, opened
from merganser.config import POINTS_FILE
from merganser.config.loading import load_params
from merganser.flows.repositories.identity import cache_folder, folders_sharing_cache
from merganser.flows.suites.kept_lock_files import FOLDER
from merganser.flows.suites.ready import EXAMPLES, IGNORED, PARAMS, sources_of
from merganser.hashes import sha256_of_json
from merganser.outputs import replacing
from merganser.plugins import METHODS
from merganser.sources.pointers import POINTER_SUFFIXES

LOCAL_CONFIG = Path(".dvc/config.local")
_COMPILED = shutil.ignore_patterns("__pycache__")
OWN = (PARAMS, POINTS_FILE, Path("dvc.lock"), IGNORED)  # what a comparison changes itself


def share_cache(root: Path, folder: Path) -> Path:
    """Give a new comparison another one's DVC cache and settings of this machine; return the cache's folder."""
    if (root / LOCAL_CONFIG).is_file():
        shutil.copy(root / LOCAL_CONFIG, folder / LOCAL_CONFIG)
    with opened(root) as repo:
        cache = cache_folder(repo)
    set_here(folder, "cache", "dir", str(cache))
    return cache


def set_here(folder: Path, section: str, key: str, value: str) -> None:
    """Set a value in DVC's local configuration, which DVC reads as UTF-8 but writes as ASCII."""
    from configobj import ConfigObj  # type: ignore[import-untyped]

    config = ConfigObj(str(folder / LOCAL_CONFIG), encoding="utf-8")
    config.setdefault(section, {})[key] = value
    config.write()


def copy_choices(root: Path, folder: Path) -> None:
    """Copy another comparison's choices, and its records of computed results."""
    lock_files = [path.relative_to(root) for path in (root / EXAMPLES).glob("**/dvc.lock")]
    kept = [path.relative_to(root) for path in (root / STATE_FOLDER / FOLDER).glob("*.lock")]
    for path in (*OWN, *lock_files, *kept):
        if (root / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, folder / path)
    if (root / METHODS).is_dir():
        shutil.copytree(root / METHODS, folder / METHODS, dirs_exist_ok=True, ignore=_COMPILED)


def copy_ledgers(repo: Repo) -> None:
    """Merge missing lines from the ledgers of trials, and of comparisons that share the cache."""
    for other in folders_sharing_cache(repo):
        copy_ledger(other, Path(repo.root_dir))


def copy_ledger(root: Path, folder: Path) -> None:
    """Copy another comparison's ledger, which has the origin of results in the shared cache."""
    state, own = root / STATE_FOLDER, folder / STATE_FOLDER
    copy = own / LEDGERS / f"{root.name}-{sha256_of_json(str(root.resolve()))[:8]}.jsonl"
    if not (state / LEDGER).is_file() or (copy.is_file() and copy.stat().st_mtime > (state / LEDGER).stat().st_mtime):
        return
    for name in (ENVIRONMENTS, CHANGES):
        if (state / name).is_dir():
            shutil.copytree(state / name, own / name, dirs_exist_ok=True)
    copy.parent.mkdir(parents=True, exist_ok=True)  # last: after a kill before it, all is copied again
    with replacing(copy) as out:
        out.write(b"".join(line + b"\n" for line, _ in own_lines(state)))


def link_sources(root: Path, folder: Path) -> Iterator[Path]:
    """Link inputs that git does not bring, and copy pointer files, which runs write into; yield the links."""
    if not (folder / PARAMS).is_file():
        return
    with opened(folder) as repo:
        made = {Path(out.fs_path) for out in repo.index.outs}
        sources = sources_of(load_params(folder / PARAMS))  # read here, next to the comparison's own methods
    for source in sources:
        path = folder / source
        is_made = any(out == path or out in path.parents for out in made)
        if not source.is_absolute() and not path.exists() and not is_made and (root / source).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in POINTER_SUFFIXES:
                shutil.copyfile(root / source, path)
            else:
                path.symlink_to(root / source)
                yield source
