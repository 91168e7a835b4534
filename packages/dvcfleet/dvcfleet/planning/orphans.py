"""Orphans: stages that dvc.lock still holds but dvc.yaml no longer declares."""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dvcfleet.dvc_adapter.lockfiles import LockFiles, names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.objects import in_cache, is_near_output
from dvcfleet.dvc_adapter.protocols import Output, Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import locked_stage
from dvcfleet.errors import some, stage_count
from dvcfleet.project import project_of

_MOST_NAMES = 10


@dataclass(frozen=True)
class Orphan:
    """A stage that only dvc.lock holds, and its outputs in the workspace.

    `readers` are the stages that read a whole folder with one of these outputs in it: in this workspace they read more
    than in a clean clone. `by_run`: the next run takes it out, without `--prune`.
    """

    name: str
    outs: tuple[str, ...]
    readers: tuple[str, ...]
    lock_file: str = field(repr=False)
    entry: dict[str, Any] = field(repr=False, compare=False)
    by_run: bool = False


def find_orphans(repo: Repo) -> Iterator[Orphan]:
    """Find the entries of dvc.lock files whose stage is no longer in dvc.yaml."""
    project = project_of(Path(repo.root_dir))
    for lock_file, declared in names_by_lock_file(repo.index.stages).items():
        names = set(declared)
        has_others = os.path.exists(lock_file) and _may_hold_others(Path(lock_file), names)
        entries = read_lock_file(lock_file) if has_others else {}
        for name, entry in entries.items():
            if name not in names:
                outs = [out for out in _lone_outs(repo, lock_file, entry) if out.exists]
                by_run = project.takes_out(Path(lock_file))
                yield Orphan(name, tuple(map(str, outs)), _readers(repo, outs), lock_file, entry, by_run)


def orphan_lines(orphans: Sequence[Orphan]) -> Iterator[str]:
    """Describe the outputs here that no longer belong to a stage, what they may change, and what removes them."""
    here = [orphan for orphan in orphans if orphan.outs]  # a copy of dvc.lock alone has none to remove
    for by_run, remover in ((True, "the next run"), (False, "--prune")):
        yield from _removed_by(remover, [orphan for orphan in here if orphan.by_run is by_run])


def _removed_by(remover: str, orphans: Sequence[Orphan]) -> Iterator[str]:
    if not orphans:
        return
    count = stage_count(len(orphans), " is", " are")
    names = some([orphan.name for orphan in orphans], _MOST_NAMES)
    yield f"{count} no longer in dvc.yaml: {names}; {remover} removes their outputs from the workspace"
    readers = list(dict.fromkeys(reader for orphan in orphans for reader in orphan.readers))
    if readers:
        outs = some([out for orphan in orphans if orphan.readers for out in orphan.outs], _MOST_NAMES)
        yield (
            f"warning: {some(readers, _MOST_NAMES)} read whole folders with such outputs in them ({outs}): "
            f"until {remover} removes these, their hashes differ from those of a clean clone"
        )


def _readers(repo: Repo, outs: Sequence[Output]) -> tuple[str, ...]:
    """Return the stages with a dependency on a folder that holds one of the outputs."""
    readers = (
        stage.addressing
        for stage in (repo.index.stages if outs else ())
        for dep in stage.deps
        if dep.protocol == "local" and any(out.fs.isin(out.fs_path, dep.fs_path) for out in outs)
    )
    return tuple(dict.fromkeys(readers))


def _may_hold_others(lock_file: Path, names: Collection[str]) -> bool:
    """Tell, without parsing YAML, whether a dvc.lock may hold other stages than these."""
    keys = re.findall(r"^  (\S.*)$", lock_file.read_text(encoding="utf-8"), re.MULTILINE)
    return any(key.removesuffix(":") not in names for key in keys)  # a long or quoted name needs the parser


def prune_orphans(repo: Repo, lock_files: LockFiles, console: Console) -> None:
    """Remove the orphans' entries from dvc.lock and their outputs from the workspace; print which."""
    orphans = list(find_orphans(repo))
    for orphan in orphans:
        left = remove_outputs(repo, orphan)
        console.print(f"{orphan.name}: no longer in dvc.yaml, removed (its outputs stay in DVC's cache)", markup=False)
        for path in left:
            console.print(f"  {path} was changed, or is not in the cache: not removed", markup=False)
    forget_orphans(lock_files, orphans)
    if orphans:
        forget_index(repo)


def forget_orphans(lock_files: LockFiles, orphans: Iterable[Orphan]) -> None:
    """Remove the orphans' entries from each dvc.lock at once."""
    names = defaultdict[str, list[str]](list)
    for orphan in orphans:
        names[orphan.lock_file].append(orphan.name)
    for path, gone in names.items():
        lock_files.forget(path, gone)


def remove_outputs(repo: Repo, orphan: Orphan) -> list[str]:
    """Remove the orphan's outputs whose bytes DVC's cache holds; return those that stay, as perhaps the only copies."""
    left = []
    for out in _lone_outs(repo, orphan.lock_file, orphan.entry):
        if not out.exists:
            continue
        if not in_cache(out) or out.workspace_status():
            left.append(str(out))
            continue
        out.remove(ignore_remove=True)
        _remove_empty_parents(Path(out.fs_path), Path(repo.root_dir))
    return left


def _lone_outs(repo: Repo, lock_file: str, entry: dict[str, Any]) -> list[Output]:
    """Return the entry's outputs that do not overlap with an output of a declared stage."""
    # dvc.lock does not hold a stage's working folder: outputs of a stage with another `wdir` are not found, and stay.
    folder = os.path.dirname(lock_file)
    inside = [out for out in entry.get("outs", ()) if _is_inside(repo, folder, out["path"])]  # DVC refuses others
    outs = locked_stage(repo, os.path.splitext(lock_file)[0] + ".yaml", entry | {"outs": inside}, folder).outs
    return [out for out in outs if not is_near_output(repo, out.fs_path)]


def _is_inside(repo: Repo, folder: str, path: str) -> bool:
    return "://" not in path and Path(os.path.normpath(os.path.join(folder, path))).is_relative_to(repo.root_dir)


def _remove_empty_parents(path: Path, root: Path) -> None:
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            return
        folder.rmdir()
