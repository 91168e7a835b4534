"""Write a comparison as one file, which anybody can check and restore.

`code.bundle` is a git bundle of the commit and the workspace's code. `files/` has the comparison's records by path.
`objects/` has DVC's objects, if the archive has data. `form` has the format, `restoring` checks and restores it.
"""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from dvcfleet.disk import overlap
from dvcfleet.dvc_adapter.objects import cached_listing
from dvcfleet.dvc_adapter.protocols import Output, Repo
from dvcfleet.errors import FailedError, some
from dvcfleet.git import GitError, git, own_environment
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.steps import Artifact, Lineage
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.record.environments import unknown_code
from dvcfleet.record.experiments import described_by, workspace_tree
from dvcfleet.repository import opened, write_lock
from dvcfleet.terminal.secrets import masked, may_hold_credential
from merganser.errors import InputError
from merganser.flows.evidence.archive.files import check_dvc_files, refuse_other_projects, why_refused
from merganser.flows.evidence.archive.form import BUNDLE, FILES, OBJECTS, write_archive
from merganser.flows.evidence.archive.mlflow_store import leave_machine
from merganser.flows.evidence.archive.stages import BRANCH, WORKSPACE, check_stages_inside, check_tree
from merganser.flows.evidence.findings import steps_writing
from merganser.flows.evidence.signing import RECORDED, SIGNATURES, files_below
from merganser.outputs import new_output, replacing
from merganser.sources.pointers import POINTER_SUFFIXES
from merganser.tasks.stages import REPORT
from merganser.tasks.tracking import ARTIFACTS, STORE, follow_artifacts  # its names are in `record`'s digest

_PACK = ("-c", "core.compression=6", "-c", "pack.window=10", "-c", "pack.depth=50")
_NOT_KEPT = ("--no-reuse-delta", "--no-reuse-object", "--delta-base-offset")  # of how this clone happens to be packed
_COMMITTER = {"NAME": "merganser", "EMAIL": "merganser@localhost"}


@dataclass
class _Content:
    """The content of an archive: files by member name; and inputs of stages that it leaves out."""

    members: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def archive(root: Path, out: Path, data: bool) -> list[str]:
    """Write a comparison that is as recorded into a new file, completely or not at all; return what to tell the user.

    `data`: include all inputs and outputs of stages, so that the restored comparison has nothing to do. Raises
    InputError if the repository has no commit, or if DVC's cache and the workspace lack something.
    """
    with new_output(out) as place, opened(root) as repo, write_lock(repo), TemporaryDirectory() as scratch:
        refuse_other_projects(root)
        check_stages_inside(repo)
        check_dvc_files(root, {Path(stage.path) for stage in repo.index.stages})
        lineage = read_lineage(repo)
        content = _Content({BUNDLE: _bundle(repo, Path(scratch))})
        _add_files(content, repo, lineage, data)
        _add_mlflow(content, Path(scratch))
        if data:
            content.members |= _objects(repo)
        for name in (each.removeprefix(FILES) for each in content.members if each.startswith(FILES)):
            if why := why_refused(name):
                raise InputError(f"{name!r}: {why}, which no archive has; move it away, or rename it")
        with replacing(place) as file:
            write_archive(file, content.members)
        spoken = list(_credentials(content))
    size = out.stat().st_size / 1e6
    lines = [f"{out}: {len(lineage.steps)} stages in {len(content.members)} files, {size:.1f} MB"]
    if not data:
        lines.append("without models and data: it only names them; --data includes them")
    if content.left_out:
        lines.append(f"not in it, although stages read it: {some(content.left_out)}")
    if spoken:
        lines.append(f"looks like it has a credential, and is archived unchanged: {some(spoken)}")
    return lines


def outputs_kept(lineage: Lineage) -> Iterator[Artifact]:
    """Yield the outputs in every archive: the report and its inputs."""
    for step in steps_writing(lineage, REPORT):
        yield from step.outputs
        for item in step.inputs:
            made = (output for name in item.made_by for output in lineage.steps[name].outputs)
            yield from (output for output in made if overlap(output.path, item.path))


def _add_files(content: _Content, repo: Repo, lineage: Lineage, data: bool) -> None:
    """Add the comparison's records, and inputs of stages that are neither in git nor outputs."""
    paths = [
        *map(Path, described_by(repo)),
        *RECORDED,
        SIGNATURES,
        *(Path(item.path) for item in outputs_kept(lineage)),
    ]
    for item in (item for step in lineage.steps.values() for item in step.inputs if item.kind == "source"):
        is_inside = not Path(item.path).is_absolute() and not item.path.startswith("../") and "://" not in item.path
        if is_inside and (data or Path(item.path).suffix in POINTER_SUFFIXES):
            paths.append(Path(item.path))
        else:
            content.left_out.append(item.path)
    content.left_out = list(dict.fromkeys(content.left_out))
    content.members |= {f"{FILES}{path.as_posix()}": path for path in sorted(set(files_below(paths)))}


def _add_mlflow(content: _Content, scratch: Path) -> None:
    """Add MLflow's store as one file without this machine's folders; a store elsewhere is left out."""
    if not STORE.is_file() or os.environ.get("MLFLOW_TRACKING_URI"):
        return
    follow_artifacts(Path())
    draft, copy = scratch / "draft.db", scratch / STORE
    _vacuum(STORE.absolute(), draft)
    with closing(sqlite3.connect(draft)) as store, store:
        leave_machine(store)
    _vacuum(draft, copy)
    with closing(sqlite3.connect(copy)) as store:
        store.execute("PRAGMA schema_version = 1")  # else it counts how often the store was written anew
    content.members[f"{FILES}{STORE}"] = copy
    content.members |= {f"{FILES}{path.as_posix()}": path for path in files_below([ARTIFACTS])}


def _vacuum(source: Path, copy: Path) -> None:
    """Copy a database into a new file whose bytes depend on its content alone."""
    with closing(sqlite3.connect(source)) as store:
        store.execute("VACUUM INTO ?", (str(copy),))


def _objects(repo: Repo) -> dict[str, Path]:
    """Return the objects of all outputs by member name: from DVC's cache, or else from the workspace."""
    objects: dict[str, Path] = {}
    for out in (out for stage in repo.index.stages for out in stage.outs if out.use_cache and out.hash_info):
        for md5, path in _objects_of(out):
            if not path.is_file():
                raise InputError(
                    f"{path_from_root(out)}: DVC's cache has not all of it; `dvc pull` or the next run brings it"
                )
            objects[f"{OBJECTS}{md5[:2]}/{md5[2:]}"] = path
    return objects


def _objects_of(out: Output) -> Iterator[tuple[str, Path]]:
    """Yield the md5 of each object of an output, and a file with its content."""
    value = out.hash_info.value
    kept = Path(out.cache.oid_to_path(value))
    if not out.hash_info.isdir:
        yield value, kept if kept.is_file() else Path(out.fs_path)
        return
    yield value, kept
    for name, md5 in (cached_listing(out) or {}).items():
        if why := why_refused(name):
            raise InputError(f"{path_from_root(out)}: has the file {name!r}: {why}, which no archive has")
        path = Path(out.cache.oid_to_path(md5))
        yield md5, path if path.is_file() else Path(out.fs_path, name)


def _bundle(repo: Repo, scratch: Path) -> Path:
    """Write a git bundle of HEAD and the workspace's code; its bytes do not depend on how this clone is packed."""
    root = Path(repo.root_dir)
    environment = own_environment()
    try:
        if Path(git(root, "rev-parse", "--show-toplevel", environment=environment).strip()) != root.resolve():
            raise InputError(f"{root}: lies in a git repository that is not its own; archive the comparison around it")
        if git(root, "rev-parse", "--is-shallow-repository", environment=environment).strip() == "true":
            raise InputError(
                f"{root}: a shallow clone, without the commits before; `git fetch --unshallow` brings them"
            )
        head = git(root, "rev-parse", "HEAD^{commit}", environment=environment).strip()
        tree = workspace_tree(repo, unknown_code(root))
        workspace = head
        if tree != git(root, "rev-parse", "HEAD^{tree}", environment=environment).strip():
            date = git(root, "show", "-s", "--format=%cI", "HEAD", environment=environment).strip()
            who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _COMMITTER.items()}
            dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
            commit = ("commit-tree", "--no-gpg-sign", tree, "-p", head, "-m", "the workspace")
            workspace = git(root, *commit, environment=environment | who | dates).strip()
        for revision in (head, workspace):
            check_tree(root, revision, environment)
    except GitError as error:
        raise InputError(f"{root}: an archive holds its commit, and git refuses: {error}") from error
    path = scratch / BUNDLE
    with path.open("wb") as file:
        file.write(f"# v2 git bundle\n{workspace} {WORKSPACE}\n{head} {BRANCH}\n\n".encode())
        file.flush()
        pack = [
            "git",
            "-C",
            str(root),
            *_PACK,
            "pack-objects",
            "--quiet",
            "--stdout",
            "--revs",
            "--threads=1",
            *_NOT_KEPT,
        ]
        commits = f"{workspace}\n{head}\n".encode()
        done = subprocess.run(pack, input=commits, stdout=file, stderr=subprocess.PIPE, env=environment, check=False)
    if done.returncode:
        raise FailedError(f"{root}: git cannot pack its commits: {os.fsdecode(done.stderr).strip()}")
    return path


def _credentials(content: _Content) -> Iterator[str]:
    """Name the files of the record that seem to contain a credential."""
    recorded = set(files_below(path for path in RECORDED if path != REPORT))
    for path in (path for path in content.members.values() if path in recorded):
        text = path.read_text(encoding="utf-8", errors="replace")
        if may_hold_credential(text) and masked(text) != text:
            yield str(path)
