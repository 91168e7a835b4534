"""What dvc.lock still holds of stages that dvc.yaml no longer has."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dvc.dvcfile import ProjectFile
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import Stage


@dataclass(frozen=True)
class Orphan:
    """A stage known to dvc.lock only, and the outputs of it that lie in the workspace."""

    name: str
    outs: tuple[str, ...]
    dvcfile: "ProjectFile" = field(repr=False, compare=False)
    entry: dict[str, Any] = field(repr=False, compare=False)


def find_orphans(repo: "Repo") -> Iterator[Orphan]:
    """Find the entries of dvc.lock files whose stage is gone from their dvc.yaml."""
    from dvc.dvcfile import ProjectFile

    files = {stage.dvcfile.path: stage.dvcfile for stage in repo.index.stages}
    for dvcfile in files.values():
        if not isinstance(dvcfile, ProjectFile):
            continue
        declared = set(dvcfile.stages)
        for name, entry in dvcfile.lockfile_contents.get("stages", {}).items():
            if name not in declared:
                outs = tuple(str(out) for out in _lone_outs(repo, dvcfile, entry) if out.exists)
                yield Orphan(name, outs, dvcfile, entry)


def take_out(repo: "Repo", orphan: Orphan) -> list[str]:
    """Remove the orphan's outputs from the workspace where DVC's cache holds the same bytes; return what was left.

    An output that was edited, or that the cache does not hold, stays: it may be the only copy.
    """
    left = []
    for out in _lone_outs(repo, orphan.dvcfile, orphan.entry):
        if not out.exists:
            continue
        if out.changed_cache() or out.workspace_status():
            left.append(str(out))
            continue
        out.remove(ignore_remove=True)
        _remove_empty_parents(Path(out.fs_path), Path(repo.root_dir))
    return left


def _lone_outs(repo: "Repo", dvcfile: "ProjectFile", entry: dict[str, Any]) -> list["Output"]:
    """Return the entry's outputs, less those that a declared stage now writes, or that hold or lie in such."""
    trie = repo.index.outs_trie
    outs = []
    for out in _locked_stage(repo, dvcfile, entry).outs:
        key = out.fs.parts(out.fs_path)
        if not (trie.has_node(key) or trie.shortest_prefix(key)):
            outs.append(out)
    return outs


def _locked_stage(repo: "Repo", dvcfile: "ProjectFile", entry: dict[str, Any]) -> "Stage":
    from dvc.stage import PipelineStage, create_stage
    from dvc.stage.loader import StageLoader

    stage = create_stage(
        PipelineStage,
        repo=repo,
        path=dvcfile.path,
        cmd=entry["cmd"],
        # dvc.lock does not keep a stage's working folder: paths of one elsewhere are not found, and stay.
        wdir=os.path.dirname(dvcfile.path),
        outs=[out["path"] for out in entry.get("outs", [])],
    )
    StageLoader.fill_from_lock(stage, entry)
    return stage


def _remove_empty_parents(path: Path, root: Path) -> None:
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            return
        folder.rmdir()
