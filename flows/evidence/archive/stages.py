"""The stages of an archive: they read and write in its folder alone."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from dvcfleet.dvc_adapter.lockfiles import lock_file_of, names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.objects import cached_listing
from dvcfleet.dvc_adapter.protocols import Output, ParamsDependency, Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params, parse_params
from dvcfleet.errors import UserError, in_one_line
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.paths import from_root
from merganser.errors import MALFORMED, InputError
from merganser.flows.evidence.archive.files import check_yaml
from merganser.flows.evidence.archive.paths import is_reserved, why_refused

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
    """Raise InputError where a stage works, writes or has its parameters outside the repository.

    An input may lie there: it is not of the archive, and is not read when an archive is verified.
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
    """Check what dvc.lock says was written: also by stages that are no longer declared."""
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
    cure = "an archive takes along what lies in the repository alone; move it there"
    return f"{stage.addressing}: {does} {path}, outside the repository; {cure}"


def _is_inside(repo: Repo, path: str) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(repo.root_dir)


def check_places(repo: Repo, has_data: bool) -> None:
    """Raise InputError where DVC would put an output through a link, over one, or out of its folder.

    To be called before DVC puts outputs into place: it follows links, and believes lists of files.
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
    """Check that the cache has all objects of an output, and that each file of a folder is one in that folder."""
    objects, is_there = out.local_cache, lambda value: os.path.isfile(objects.oid_to_path(value))
    listing = cached_listing(out) if out.hash_info.isdir else {"": out.hash_info.value}
    if listing is None and is_there(out.hash_info.value):
        raise InputError(f"{name}: the list of its files is damaged, or names files out of its folder")
    if listing is None or not all(map(is_there, listing.values())):
        raise InputError(f"{name}: the archive has not all of it")
    if wrong := next((file for file in listing if file and why_refused(file)), None):
        raise InputError(f"{name}: has the file {wrong!r}: {why_refused(wrong)}")
