"""Check an archive's code and stages: they may read and write in its folder alone.

The code in the git bundle is checked before any of it is written, and is checked out with all settings off.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.objects import cached_listing
from dvcfleet.dvc_adapter.protocols import Output, ParamsDependency, Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params, parse_params
from dvcfleet.errors import UserError, in_one_line
from dvcfleet.git import GitError, git, own_environment
from dvcfleet.lineage.contents import path_from_root
from merganser.errors import MALFORMED, InputError
from merganser.flows.evidence.archive.files import check_yaml, is_reserved, why_refused, wrong_links
from merganser.flows.evidence.archive.form import BUNDLE, copy_bytes

BRANCH, WORKSPACE = "refs/heads/comparison", "refs/archive/workspace"
LARGEST = 4 * 2**30  # bytes of code, unpacked
_LONGEST_LINK = 4096
_LONGEST_TREE = 32 * 2**20  # bytes of the list of all files
# No hook, monitor, filter, submodule, transport or setting but these runs or counts, whoever's it is.
_SETTINGS = {
    **{"core.hooksPath": os.devnull, "core.fsmonitor": "false", "core.attributesFile": os.devnull},
    **{"core.protectHFS": "true", "core.protectNTFS": "true", "core.symlinks": "true", "core.autocrlf": "false"},
    **{"safe.bareRepository": "explicit", "submodule.recurse": "false", "protocol.allow": "never"},
    **{"protocol.file.allow": "always", "gc.auto": "0", "maintenance.auto": "false", "fetch.unpackLimit": "1"},
}


def quiet_git() -> dict[str, str]:
    """Return variables that make git ignore the settings of user and system, and run no hooks or filters."""
    numbered = enumerate(_SETTINGS.items())
    given = {
        f"GIT_CONFIG_{what}_{n}": each
        for n, pair in numbered
        for what, each in zip(("KEY", "VALUE"), pair, strict=False)
    }
    alone = dict.fromkeys(("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM"), "1") | {"GIT_TERMINAL_PROMPT": "0"}
    nobody = dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)
    return {**given, "GIT_CONFIG_COUNT": str(len(_SETTINGS)), **alone, **nobody}


def check_out_code(source: BinaryIO, size: int, folder: Path) -> None:
    """Restore the commit as HEAD, and the code's state at that time: changed, removed and untracked files.

    Raises InputError, before any code is written, for content that an archive may not have.
    """
    environment = own_environment() | quiet_git()
    try:
        with TemporaryDirectory() as scratch:
            bundle = Path(scratch, BUNDLE)
            with bundle.open("wb") as out:
                copy_bytes(source, size, out)
            git(folder, "init", "-q", "--template=", "-b", BRANCH.rpartition("/")[2], environment=environment)
            refs = [f"{ref}:{ref}" for ref in (BRANCH, WORKSPACE)]
            fetch = ("fetch", "-q", "--no-tags", "--no-recurse-submodules", "--update-head-ok", str(bundle), *refs)
            git(folder, *fetch, environment=environment)
        for ref in (BRANCH, WORKSPACE):
            check_tree(folder, f"{ref}^{{commit}}", environment)
        git(folder, "read-tree", "--reset", "-u", WORKSPACE, environment=environment)
        git(folder, "reset", "-q", "--mixed", environment=environment)
        git(folder, "update-ref", "-d", WORKSPACE, environment=environment)
    except GitError as error:
        raise InputError(f"{BUNDLE}: git cannot restore the code: {error}") from error


def check_tree(root: Path, revision: str, environment: Mapping[str, str]) -> None:
    """Raise InputError if a commit has a submodule, a link out of its folder, or a forbidden file."""
    listed = list(_entries(_listed(root, revision, environment)))
    for mode, _, _, path in listed:
        if mode == "160000":
            raise InputError(f"{path}: a git submodule, and an archive has the code of one repository")
        if why := why_refused(path):
            raise InputError(f"{path}: {why}; remove it from the commit")
    if (total := sum(size for _, _, size, _ in listed)) > LARGEST:
        raise InputError(
            f"{BUNDLE}: holds {total / 1e9:.1f} GB of code, and an archive has {LARGEST / 1e9:.1f} at most"
        )
    links = [(path, name) for mode, name, size, path in listed if mode == "120000" and size <= _LONGEST_LINK]
    if len(links) < sum(mode == "120000" for mode, *_ in listed):
        raise InputError(f"{BUNDLE}: has a link with a target longer than {_LONGEST_LINK} bytes")
    targets = dict(
        zip((path for path, _ in links), _blobs(root, [name for _, name in links], environment), strict=True)
    )
    for path, where in wrong_links(targets):
        raise InputError(f"{path}: a link to {targets[path]!r}, {where}; put the file itself there")


def _listed(root: Path, revision: str, environment: Mapping[str, str]) -> str:
    """List a commit's tree, up to a limit: a tree that contains itself many times takes few bytes."""
    command = ["git", "-C", str(root), "ls-tree", "-r", "-l", "-z", "--full-tree", revision]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as listing:
        assert listing.stdout is not None
        listed = listing.stdout.read(_LONGEST_TREE + 1)
        if len(listed) > _LONGEST_TREE:
            listing.kill()
            raise InputError(f"{BUNDLE}: names more than {_LONGEST_TREE >> 20} MiB of files, and no code has so many")
    if listing.returncode:
        raise GitError(f"ls-tree fails for {revision}")
    return os.fsdecode(listed)


def _entries(listed: str) -> Iterator[tuple[str, str, int, str]]:
    """Parse git's list of a tree: mode, object name, size in bytes and path of each entry."""
    for line in listed.split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, _, name, size = about.split()
        yield mode, name, int(size) if size.isdigit() else 0, path


def _blobs(root: Path, names: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the contents of git's blobs by name; each is small."""
    command, given = ["git", "-C", str(root), "cat-file", "--batch"], "".join(f"{name}\n" for name in names).encode()
    done = subprocess.run(command, input=given, env=environment, capture_output=True, check=False) if names else None
    left = done.stdout if done else b""
    for _ in names:
        head, _, left = left.partition(b"\n")
        size = int(head.split()[2])
        yield os.fsdecode(left[:size])
        left = left[size + 1 :]


# Where inputs may be, which are then left out.
_INPUTS = (
    "local",
    "http",
    "https",
    "s3",
    "gs",
    "azure",
    "oss",
    "ssh",
    "hdfs",
    "webhdfs",
    "webdav",
    "webdavs",
    "gdrive",
)
_HASH = re.compile(r"[0-9a-f]{32}(\.dir)?")


def check_stages_inside(repo: Repo) -> None:
    """Raise InputError if a stage works, writes or has parameters outside the repository.

    An input may be outside: the archive does not have it, and `verify` does not read it.
    """
    read: set[str] = set()
    for stage in repo.index.stages:
        if not _is_inside(repo, stage.wdir):
            raise InputError(_elsewhere(stage, "works in", stage.wdir))
        for out in stage.outs:
            _check_output(repo, stage, out)
        for dep in stage.deps:
            if dep.protocol not in (None, *_INPUTS):
                raise InputError(_elsewhere(stage, "imports", dep.def_path))
            if is_params(dep) and dep.fs_path not in read:
                _check_params(stage, dep)
                read.add(dep.fs_path)
    for path in names_by_lock_file(repo.index.stages):
        _check_lock_file(repo, path)


def _check_output(repo: Repo, stage: Stage, out: Output) -> None:
    if out.protocol != "local" or not out.is_in_repo:
        raise InputError(_elsewhere(stage, "writes", out.def_path))
    name = from_root(repo.root_dir, out.fs_path)
    if why := why_refused(name) or (is_reserved(name) and "a file of git's, DVC's or the engine's"):
        raise InputError(f"{stage.addressing}: writes {out.def_path}: {why}")


def _check_params(stage: Stage, dep: ParamsDependency) -> None:
    if not dep.is_in_repo:
        raise InputError(_elsewhere(stage, "has its parameters in", dep.def_path))
    if not os.path.isfile(dep.fs_path):
        return
    check_yaml(Path(dep.fs_path), dep.def_path)
    try:
        parse_params(dep.fs_path)
    except (UserError, InputError):
        raise
    except (*MALFORMED, RecursionError, MemoryError, SyntaxError) as error:
        raise InputError(f"{dep.def_path}: cannot be read as parameters ({in_one_line(error)})") from error


def _check_lock_file(repo: Repo, path: str) -> None:
    """Check the outputs in dvc.lock, also those of stages that are no longer declared."""
    wdirs = {
        stage.name: stage.wdir for stage in repo.index.stages if in_dvc_yaml(stage) and lock_file_of(stage) == path
    }
    for name, entry in read_lock_file(path).items():
        for out in entry.get("outs", ()):
            place = os.path.normpath(os.path.join(wdirs.get(name, os.path.dirname(path)), out["path"]))
            if "://" in out["path"] or not _is_inside(repo, place):
                raise InputError(
                    f"{os.path.relpath(path, repo.root_dir)}: {name} wrote {out['path']}, outside the repository"
                )


def _elsewhere(stage: Stage, does: str, path: str) -> str:
    cure = "an archive takes only files in the repository; move it there"
    return f"{stage.addressing}: {does} {path}, outside the repository; {cure}"


def _is_inside(repo: Repo, path: str) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(repo.root_dir)


def check_places(repo: Repo, has_data: bool) -> None:
    """Raise InputError if DVC would write an output through or over a link, or outside its folder.

    Call it before DVC checks outputs out: DVC follows links and trusts lists of files.
    """
    links = set(_links(Path(repo.root_dir)))
    for out in (out for stage in repo.index.stages for out in stage.outs):
        name, place = path_from_root(out), Path(out.fs_path)
        if wrong := next((link for link in links if place.is_relative_to(link) or link.is_relative_to(place)), None):
            raise InputError(f"{name}: would be written through the link {from_root(repo.root_dir, str(wrong))}")
        if out.hash_info and not _HASH.fullmatch(str(out.hash_info.value)):
            raise InputError(f"{name}: {out.hash_info.value!r} is no hash of DVC's")
        if out.files:
            raise InputError(f"{name}: a remote has its versions, and an archive has objects")
        if has_data and out.use_cache and out.hash_info:
            _check_objects(out, name)


def _links(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if not is_reserved(name)]
        yield from (path for name in (*folders, *names) if (path := Path(folder, name)).is_symlink())


def _check_objects(out: Output, name: str) -> None:
    """Check that the cache has all objects of an output, and that each file of a folder is inside it."""
    objects, is_there = out.local_cache, lambda value: os.path.isfile(objects.oid_to_path(value))
    listing = cached_listing(out) if out.hash_info.isdir else {"": out.hash_info.value}
    if listing is None and is_there(out.hash_info.value):
        raise InputError(f"{name}: the list of its files is damaged, or names files out of its folder")
    if listing is None or not all(map(is_there, listing.values())):
        raise InputError(f"{name}: the archive has not all of it")
    if wrong := next((file for file in listing if file and why_refused(file)), None):
        raise InputError(f"{name}: has the file {wrong!r}: {why_refused(wrong)}")
