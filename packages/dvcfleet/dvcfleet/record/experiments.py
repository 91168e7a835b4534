"""Save a finished run as a DVC experiment of its name: `dvc exp show` lists it, `dvc exp apply` restores it.

An experiment is a commit on top of HEAD that is on no branch. DVC's own `exp save` stashes the workspace to make it, so
that a kill loses the workspace's changes; it hashes all outputs again, writes dvc.lock once per stage, and adds files
that a plot reads to git, even a stage's outputs. Here the same commit is made from a separate git index, as fast as git
can, and the workspace does not change.
"""

import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from dvcfleet.disk import sync_file_systems
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.lockfiles import lock_file_of
from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.dvc_adapter.repositories import experiment_ref
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params, variable_files
from dvcfleet.git import GitError, git, git_if_any
from dvcfleet.project import project_of
from dvcfleet.record.chain import end_of, identity_in, record_files
from dvcfleet.repository import state_folder
from dvcfleet.run_names import RUN_NAME_VARIABLE

_ADDRESS = "dvcfleet@localhost"
# Of a user whom neither git nor the system knows.
_NOBODY = ("-c", "user.name=dvcfleet", "-c", f"user.email={_ADDRESS}")
_OF_DVC = ("dvc.yaml", "dvc.lock", ".dvc")  # every experiment has them, whatever git ignores
_OBJECT = re.compile("[0-9a-f]{38}|[0-9a-f]{62}")


def keep_experiment(repo: Repo, name: str, console: Console) -> None:
    """Save a successful run as an experiment, and report it; a failure to save does not fail the run."""
    try:
        if save_experiment(repo, name):
            console.print(f"saved as the DVC experiment {name}")
    except (GitError, OSError) as error:
        console.print(f"not saved as a DVC experiment: {error}", style="yellow", markup=False)


def save_experiment(repo: Repo, name: str) -> str | None:
    """Save the workspace as an experiment; return its commit, None if git has no commit yet.

    An earlier experiment of this name on the same commit is replaced. Raises GitError.
    """
    if not under_git(repo) or repo.scm.no_commits:
        return None
    head = repo.scm.get_rev()
    objects = _git_path(repo, "objects")
    ref = experiment_ref(head, name)
    _refuse_anothers(repo, ref)
    commit = _commit_whole(repo, head, name, objects)
    sync_file_systems([objects, state_folder(repo)])  # the commit names the ledger's last line
    _git(repo, None, "-c", "core.fsync=reference", "update-ref", ref, commit)
    return commit


def _refuse_anothers(repo: Repo, ref: str) -> None:
    """Raise GitError if another repository that shares this git has an experiment of this name on this commit."""
    there = identity_in(git_if_any(repo.root_dir, "log", "-1", "--format=%B", ref) or "")
    if there not in ("", _identity(repo)):
        raise GitError(f"{there} has one of this name on this commit; {RUN_NAME_VARIABLE} gives a run another name")


def _identity(repo: Repo) -> str:
    root = Path(repo.root_dir)
    return project_of(root).identity(root)


def _commit_whole(repo: Repo, head: str, name: str, objects: Path) -> str:
    """Commit the workspace, and again if a crash of the machine had torn objects that git took for written."""
    try:
        commit = _commit(repo, head, name)
        listed = _git(repo, None, "rev-list", "--objects", "--no-object-names", commit, f"^{head}").split()
        if not _remove_torn(objects / digest[:2] / digest[2:] for digest in listed):
            return commit
    except GitError:
        if not _remove_torn(objects.glob("[0-9a-f][0-9a-f]/*")):
            raise
    return _commit(repo, head, name)


def _remove_torn(objects: Iterable[Path]) -> int:
    """Remove those of git's loose objects that do not hold what their names say; return their number."""
    torn = [path for path in objects if path.is_file() and _OBJECT.fullmatch(path.name) and _is_torn(path)]
    for path in torn:
        path.unlink()
    return len(torn)


def _is_torn(path: Path) -> bool:
    name = path.parent.name + path.name
    try:
        content = zlib.decompress(path.read_bytes())
    except zlib.error:
        return True
    return hashlib.new("sha1" if len(name) == 40 else "sha256", content).hexdigest() != name


def _commit(repo: Repo, head: str, name: str) -> str:
    state = state_folder(repo)
    texts = {os.path.relpath(state / path, repo.root_dir): text for path, text in record_files(state, name).items()}
    files = described_by(repo)
    hidden = _hidden(repo, [path for path in files if not path.endswith(_OF_DVC)])
    tree = workspace_tree(repo, [path for path in files if path not in hidden], texts)
    identity = _identity(repo)
    trailers = filter(None, [end_of(state), f"Identity: {identity}" if identity else ""])
    message = "\n".join([f"run {name}", "", *trailers]).strip()
    is_known = git_if_any(repo.root_dir, "var", "GIT_COMMITTER_IDENT", environment=_environment()) is not None
    return _git(repo, None, *(() if is_known else _NOBODY), "commit-tree", tree, "-p", head, "-m", message)


def workspace_tree(repo: Repo, files: Iterable[str] = (), texts: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a git tree of the tracked files as they are, untracked `files`, and `texts` by path; nothing changes."""
    with tempfile.TemporaryDirectory(dir=state_folder(repo)) as folder:
        index = Path(folder) / "index"
        # A copy of git's index: git then does not read unchanged files again. With its time, from which git tells
        # that a file of the same size was changed in the second in which the index was written.
        shutil.copy2(_git_path(repo, "index"), index)
        _git(repo, index, "add", "--update", "--", ":/")
        _git(repo, index, "update-index", "--add", "-z", "--stdin", given="\0".join(files))
        inside = _git(repo, None, "rev-parse", "--show-prefix")  # of a repository in a folder of git's
        for path, text in texts.items():
            blob = _git(repo, None, "hash-object", "-w", "--stdin", given=text)
            _git(repo, index, "update-index", "--add", "--cacheinfo", f"100644,{blob},{inside}{path}")
        return _git(repo, index, "write-tree")


def _git_path(repo: Repo, name: str) -> Path:
    return Path(repo.root_dir, _git(repo, None, "rev-parse", "--git-path", name))


def described_by(repo: Repo) -> list[str]:
    """List the files of an experiment, also untracked ones: dvc.yaml, dvc.lock, params, etc."""
    paths = dict.fromkeys(path for stage in repo.index.stages for path in _small_files(stage))
    projects = {stage.path for stage in repo.index.stages if in_dvc_yaml(stage)}
    paths |= dict.fromkeys(file for project in sorted(projects) for file in variable_files(project))
    return [os.path.relpath(path, repo.root_dir) for path in paths if os.path.isfile(path)]


def _hidden(repo: Repo, paths: Iterable[str]) -> set[str]:
    """Return outputs and parameter files that git ignores, which DVC's own experiments also leave out."""
    try:
        return set(_git(repo, None, "check-ignore", "-z", "--stdin", given="\0".join(paths)).split("\0"))
    except GitError as error:
        if str(error):
            raise
        return set()  # it ignores none


def _small_files(stage: Stage) -> Iterator[str]:
    yield stage.path
    if in_dvc_yaml(stage):
        yield lock_file_of(stage)
    for dep in stage.deps:
        if is_params(dep):
            yield dep.fs_path
    for out in stage.outs:
        if not out.use_cache and out.protocol == "local" and out.is_in_repo:
            yield out.fs_path


def _git(repo: Repo, index: Path | None, *args: str, given: str = "") -> str:
    """Run git in the repository's root, with a separate index if given; return its output."""
    environment = _environment()
    if index:
        environment["GIT_INDEX_FILE"] = str(index)
    return git(repo.root_dir, *args, given=given, environment=environment).strip()


def _environment() -> dict[str, str]:
    """Return git's environment, with our own user address and the system's user name if its settings have none."""
    return {"EMAIL": _ADDRESS} | os.environ
