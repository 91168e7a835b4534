"""The files of an archive that DVC and the engine read: settings by a list of what may be set, the rest by size."""

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

from dvcfleet.errors import in_one_line
from dvcfleet.paths import from_root
from dvcfleet.project import TABLE
from dvcfleet.record.ledger import LEDGERS
from dvcfleet.repository import STATE_FOLDER
from flows.archive_paths import is_reserved
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
        if path.name == "dvc.yaml" and "vars" in text:
            _refuse_variables(parse_yaml(text, name), name)


def _refuse_imports(content: Any, name: str) -> None:
    deps = content.get("deps") if isinstance(content, dict) else None
    if any(not isinstance(dep, dict) or {"repo", "db"} & dep.keys() for dep in deps or ()):
        raise InputError(
            f"{name}: imports from another repository or a database; an archive has what it imported alone"
        )


def _refuse_variables(content: Any, name: str) -> None:
    """Refuse a dvc.yaml whose `vars`, or those of a stage, are read from outside the repository."""
    stages = content.get("stages") if isinstance(content, dict) else None
    declared = [each for each in (content, *(stages or {}).values()) if isinstance(each, dict)]
    declared += [each["do"] for each in declared if isinstance(each.get("do"), dict)]
    for each in declared:
        for file in (file for file in each.get("vars") or () if isinstance(file, str)):
            folders = (os.path.dirname(name), str(each.get("wdir", "")))
            if file.startswith("/") or os.path.normpath(os.path.join(*folders, file)).startswith(("..", "/")):
                raise InputError(f"{name}: reads its variables from {file}, outside the repository")


def _files_of_dvc(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if not is_reserved(name)]
        for name in names:
            if name in ("dvc.yaml", "dvc.lock") or name.endswith((".dvc", ".yaml", ".yml")):
                yield Path(folder, name)


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
