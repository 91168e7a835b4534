"""What DVC is told by an archive: its settings by a list of what may be set, its stages where they read and write."""

import gzip
import os
import re
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from configobj import ConfigObj, ConfigObjError  # type: ignore[import-untyped]
from ruamel.yaml.error import YAMLError

from dvcfleet.dvc_adapter.lockfiles import lock_file_of, names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.objects import cached_listing
from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params
from dvcfleet.errors import in_one_line
from dvcfleet.lineage.contents import name_of
from dvcfleet.paths import from_root
from dvcfleet.project import TABLE
from dvcfleet.record.ledger import LEDGERS
from dvcfleet.repository import STATE_FOLDER
from flows.archive_paths import is_reserved, why_refused
from merganser.errors import MALFORMED, InputError
from merganser.limits import check_depth, parse_yaml, read_small

CONFIG = Path(".dvc/config")
# What an archive may set of DVC: nothing here names a path, an address, a program or a secret.
_MAY_BE_SET = {
    "core": {"analytics", "autostage", "check_update", "experiments", "hardlink_lock", "interactive", "no_scm"},
    "cache": {"type", "shared", "protected", "slow_link_warning", "verify"},
    "parsing": {"bool", "list"},
}
PROJECT = "flows.project:MERGANSER"
_HASH = re.compile(r"[0-9a-f]{32}(\.dir)?")
_LARGEST_LIST = 64 * 2**20  # bytes of a dvc.lock
_LARGEST_RECORD = 256 * 2**20  # bytes of JSON, and of a ledger, unpacked


def refuse_other_projects(root: Path) -> None:
    """Raise InputError if a repository declares hooks that are not Merganser's own: to open it would import them."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return
    try:
        declared = tomllib.loads(read_small(path).decode()).get("tool", {}).get(TABLE, {}).get("project", PROJECT)
    except (*MALFORMED, RecursionError) as error:
        raise InputError(f"{path.name}: cannot be read as TOML ({in_one_line(error)})") from error
    if declared != PROJECT:
        raise InputError(
            f"{path.name}: tool.{TABLE}.project is {declared!r}, not {PROJECT!r}: an archive imports no other code"
        )


def keep_harmless_settings(root: Path) -> list[str]:
    """Take everything out of `.dvc/config` that an archive may not set; return what that was, by name."""
    path = root / CONFIG
    if not path.is_file():
        return []
    try:
        config = ConfigObj(read_small(path).decode().splitlines(), interpolation=False)
    except (ConfigObjError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{CONFIG}: not DVC's settings ({next(iter(str(error).splitlines()), '')})") from error
    dropped = list(_drop_others(config))
    if dropped:
        path.write_text("\n".join([*config.write(), ""]), encoding="utf-8")
    return dropped


def _drop_others(config: Any) -> Iterator[str]:
    for section in list(config):
        values = config[section]
        if not isinstance(values, dict):
            yield section
            del config[section]
            continue
        known = _MAY_BE_SET.get(section.lower(), set())
        for key in [key for key in values if key.lower() not in known or isinstance(values[key], dict)]:
            yield f"{section.replace(chr(34), '')}.{key}"
            del values[key]
        if not values:
            del config[section]


def check_files(root: Path) -> None:
    """Raise InputError for a YAML file that DVC cannot read, or that makes it read elsewhere, before DVC reads any."""
    for path in _files_of_dvc(root):
        name = from_root(str(root), str(path))
        try:
            text = read_small(path, _LARGEST_LIST).decode()
            check_depth(text)
        except (*MALFORMED, YAMLError) as error:
            raise InputError(f"{name}: cannot be read ({in_one_line(error)})") from error
        # DVC writes none: aliases of aliases expand to more than any memory holds.
        if re.search(r"(^|[\s\[{,])[*]\w", text) and re.search(r"(^|[\s\[{,])&\w", text):
            parse_yaml(text, name)
        if path.suffix == ".dvc":
            _refuse_imports(parse_yaml(text, name), name)


def _refuse_imports(content: Any, name: str) -> None:
    deps = content.get("deps") if isinstance(content, dict) else None
    if any(not isinstance(dep, dict) or {"repo", "db"} & dep.keys() for dep in deps or ()):
        raise InputError(
            f"{name}: imports from another repository or a database; an archive has what it imported alone"
        )


def _files_of_dvc(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if not is_reserved(name)]
        for name in names:
            if name in ("dvc.yaml", "dvc.lock") or name.endswith((".dvc", ".yaml", ".yml")):
                yield Path(folder, name)


def check_stages(repo: Repo) -> None:
    """Raise InputError where a stage works, writes or has its parameters outside the repository.

    An input may lie there: it is not of the archive, and is not read when an archive is verified.
    """
    for stage in repo.index.stages:
        if not _is_inside(repo, stage.wdir):
            raise InputError(
                f"{stage.addressing}: works in {stage.wdir}, outside the repository; an archive has no such stage"
            )
        for out in stage.outs:
            if out.protocol != "local" or not out.is_in_repo:
                raise InputError(_elsewhere(stage, "writes", out.def_path))
            if is_reserved(from_root(repo.root_dir, out.fs_path)):
                raise InputError(
                    f"{stage.addressing}: writes {out.def_path}, where git, DVC or the engine keep their own"
                )
        for dep in stage.deps:
            if is_params(dep) and not dep.is_in_repo:
                raise InputError(_elsewhere(stage, "has its parameters in", dep.def_path))
            if dep.protocol not in ("local", "http", "https", "s3", "gs", "azure", "ssh", "hdfs", "webhdfs", "webdav"):
                raise InputError(_elsewhere(stage, "imports", dep.def_path))
    for path in names_by_lock_file(repo.index.stages):
        _check_lock_file(repo, path)


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
        name, place = name_of(out), Path(out.fs_path)
        if wrong := next((link for link in links if place.is_relative_to(link) or link.is_relative_to(place)), None):
            raise InputError(f"{name}: would be written through the link {from_root(repo.root_dir, str(wrong))}")
        if out.hash_info and not _HASH.fullmatch(str(out.hash_info.value)):
            raise InputError(f"{name}: {out.hash_info.value!r} is no hash of DVC's")
        if out.files:
            raise InputError(f"{name}: a remote has its versions, and an archive has objects")
        if has_data and out.use_cache and out.hash_info:
            _check_objects(out, name)


def check_sizes(root: Path) -> None:
    """Raise InputError for a record that is larger, or unpacks to more, than memory should have to hold."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", ".dvc")]
        for path in (Path(folder, name) for name in names if name.endswith((".json", ".gz"))):
            is_ledger = path.suffix == ".gz" and path.parent == root / STATE_FOLDER / LEDGERS
            if path.is_file() and (path.suffix == ".json" or is_ledger) and _unpacked(path) > _LARGEST_RECORD:
                most = f"more than {_LARGEST_RECORD >> 20} MiB"
                raise InputError(
                    f"{from_root(str(root), str(path))}: {most}, and no record of a comparison is so large"
                )


def _unpacked(path: Path) -> int:
    """Return the size of a file, of a compressed one unpacked as far as it is sound, and is of no excessive size."""
    if path.suffix != ".gz":
        return path.stat().st_size
    size = 0
    with suppress(gzip.BadGzipFile, EOFError, zlib.error), gzip.open(path) as file:
        while size <= _LARGEST_RECORD and (chunk := file.read(2**20)):
            size += len(chunk)
    return size


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
