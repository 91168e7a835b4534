"""Check an archive's files before DVC and the engine read them: paths, links, settings and sizes.

Paths and links are checked by text alone, before anything is written: a restored archive stays in its folder, and out
of git's and DVC's own folders. Settings must be on a list of harmless ones.
"""

import gzip
import os
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from configobj import ConfigObj, ConfigObjError  # type: ignore[import-untyped]
from ruamel.yaml.error import YAMLError

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.stages import parse_params
from dvcfleet.errors import UserError, in_one_line
from dvcfleet.project import TABLE
from dvcfleet.repository import STATE_FOLDER
from merganser.errors import MALFORMED, InputError
from merganser.flows.evidence.archive.expansion import check_expansion
from merganser.limits import check_depth, parse_yaml, read_small
from merganser.tasks.stages import MERGE_MEASURES, MERGE_PROFILES, METRICS, RECORDS, REPORT, UNSEEN

# Of DVC's folder and the engine's: settings and records. Everything else there is working state of one machine.
_DVC = re.compile(r"\.dvc/(config|\.gitignore|plots/[^/]+\.json)")
_ENGINE = re.compile(
    r"\.dvcfleet/(\.gitignore|ledger\.jsonl|ledgers/[^/]+\.jsonl(\.gz)?"
    r"|environments/[0-9a-f]{64}\.json|changes/[0-9a-f]{64}\.patch)"
)
# What HFS+ ignores in names, so that `.g\u200cit` is `.git` there.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT = re.compile(r"\.git|git~\d+")
_RESERVED = (".dvc", ".dvcfleet")
# SQLite rolls back what the journal beside a database says, which may name files anywhere.
_JOURNAL = re.compile(r".*\.db-(journal|wal|shm|mj.*)")


def why_refused(name: str) -> str:
    """Return why an archive may not contain a file with this path; empty if it may."""
    if why := why_elsewhere(name):
        return why
    parts = [_IGNORED.sub("", part).casefold().rstrip(". ") for part in name.split("/")]
    if any(_GIT.fullmatch(part) for part in parts):
        return "git's own folder: its settings can run commands"
    if parts[0] == ".dvc" and not _DVC.fullmatch(name):
        return "not one of the files in .dvc that an archive has: config, .gitignore, plots/*.json"
    if parts[0] == ".dvcfleet" and not _ENGINE.fullmatch(name):
        return "not one of the records in .dvcfleet that an archive has"
    if _JOURNAL.fullmatch(parts[-1]):
        return "a database's journal, which SQLite would play back"
    return ""


def why_elsewhere(name: str) -> str:
    """Return why a path is not a plain path inside a folder; empty if it is."""
    parts = PurePosixPath(name).parts
    if not name or name != "/".join(parts) or name.startswith("/") or ".." in parts or "\0" in name or "\n" in name:
        return "a path that leads elsewhere"
    return ""


def is_reserved(name: str) -> bool:
    """Tell whether a path is the folder of git, DVC or the engine, or inside one."""
    parts = [_IGNORED.sub("", part).casefold().rstrip(". ") for part in name.split("/")]
    return parts[0] in _RESERVED or any(_GIT.fullmatch(part) for part in parts)


def wrong_links(links: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield links that lead out of the folder or into a reserved one, with what is wrong.

    `links`: each link's target by its path. A link may lead to another link, but not through one.
    """
    for path, target in links.items():
        if target.startswith("/") or "\0" in target:
            yield path, "an absolute path"
        elif (reached := _reached(path, target, links)) is None:
            yield path, "out of the folder, to its root, or through another link"
        elif is_reserved(reached):
            yield path, "a folder of git's, DVC's or the engine's"


def _reached(path: str, target: str, links: Mapping[str, str]) -> str | None:
    """Return the path that a link leads to; None if it leaves the folder or passes through another link."""
    place = path.split("/")[:-1]
    parts = [part for part in target.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if part != "..":
            place.append(part)
        elif place:
            place.pop()
        else:
            return None
        if number < len(parts) - 1 and "/".join(place) in links:
            return None
    return "/".join(place) or None


CONFIG = Path(".dvc/config")
# What an archive may set of DVC: nothing here names a path, an address, a program or a secret.
_MAY_BE_SET = {
    "core": {"analytics", "autostage", "check_update", "experiments", "hardlink_lock", "interactive", "no_scm"},
    "cache": {"type", "shared", "protected", "slow_link_warning", "verify"},
    "parsing": {"bool", "list"},
}
# Merganser's hooks, as pyproject.toml in its repository has named them: today, and in earlier versions.
HOOKS = ("merganser.flows.comparison:MERGANSER", "merganser.flows.project:MERGANSER", "flows.project:MERGANSER")
_VARIABLES = (".yaml", ".yml", ".json", ".toml", ".py")  # files that DVC reads as `vars`
_LARGEST_LIST = 64 * 2**20  # bytes of a dvc.lock
_RECORDS = (STATE_FOLDER, METRICS, RECORDS, MERGE_PROFILES, MERGE_MEASURES, REPORT, UNSEEN)
_LARGEST_RECORD = 256 * 2**20  # bytes of JSON, and of a ledger, unpacked


def refuse_other_projects(root: Path) -> None:
    """Raise InputError if a repository declares hooks other than Merganser's: opening it would import them."""
    declared = declared_hooks(root)
    if declared not in (None, *HOOKS):
        raise InputError(
            f"pyproject.toml: tool.{TABLE}.project is {declared!r}, not {HOOKS[0]!r}: an archive imports no other code"
        )


def declared_hooks(root: Path) -> Any:
    """Return what a repository's pyproject.toml declares as its hooks; None if it declares none."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return None
    try:
        return tomllib.loads(read_small(path).decode()).get("tool", {}).get(TABLE, {}).get("project")
    except (*MALFORMED, RecursionError) as error:
        raise InputError(f"{path.name}: cannot be read as TOML ({in_one_line(error)})") from error


def keep_harmless_settings(root: Path) -> list[str]:
    """Remove settings from `.dvc/config` that an archive may not set; return their names."""
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


def check_dvc_files(root: Path, paths: Iterable[Path]) -> None:
    """Raise InputError for a DVC file that reads outside the folder, or that DVC cannot read."""
    for path in paths:
        name = from_root(str(root), str(path))
        text = check_yaml(path, name)
        if path.suffix == ".dvc":
            _refuse_imports(parse_yaml(text, name), name)
        if path.name == "dvc.yaml":
            content = parse_yaml(text, name)
            check_expansion(content, [_values_in(root, file) for file in _variables(content, name)], name)


def _values_in(root: Path, name: str) -> Any:
    """Return the variables in a file; None if it is missing or has none."""
    path = root / name
    if not path.is_file() or path.suffix not in _VARIABLES:
        return None
    if path.suffix in (".yaml", ".yml"):
        return parse_yaml(check_yaml(path, name), name)
    try:
        return parse_params(str(path))
    except (UserError, *MALFORMED, RecursionError, MemoryError, SyntaxError) as error:
        raise InputError(f"{name}: cannot be read as parameters ({in_one_line(error)})") from error


def check_yaml(path: Path, name: str) -> str:
    """Return a YAML file's text; raise InputError if it is nested or expands too far to load."""
    if path.suffix not in (".yaml", ".yml", ".lock", ".dvc") or not path.is_file():
        return ""
    try:
        text = read_small(path, _LARGEST_LIST).decode()
        check_depth(text)
    except (*MALFORMED, YAMLError) as error:
        raise InputError(f"{name}: cannot be read ({in_one_line(error)})") from error
    # DVC writes none: aliases of aliases expand to more than any memory holds.
    if re.search(r"(^|[\s\[{,])[*]\w", text) and re.search(r"(^|[\s\[{,])&\w", text):
        parse_yaml(text, name)
    return text


def _refuse_imports(content: Any, name: str) -> None:
    """Refuse imports that have their own settings; the address of other imports is used only by `dvc update`."""
    deps = content.get("deps") if isinstance(content, dict) else None
    for dep in deps if isinstance(deps, list) else ():
        repo = dep.get("repo", {}) if isinstance(dep, dict) else None
        if not isinstance(repo, dict) or "db" in dep or not repo.keys() <= {"url", "rev", "rev_lock"}:
            raise InputError(
                f"{name}: imports with its own settings, or from a database; an archive has no such import"
            )


def _variables(content: Any, name: str) -> Iterator[str]:
    """Yield the files that a dvc.yaml or its stages read as `vars`; refuse files outside the repository."""
    stages = content.get("stages") if isinstance(content, dict) else None
    listed = [content, *(stages.values() if isinstance(stages, dict) else ())]
    declared = [mapping for mapping in listed if isinstance(mapping, dict)]
    declared += [mapping["do"] for mapping in declared if isinstance(mapping.get("do"), dict)]
    yield os.path.join(os.path.dirname(name), "params.yaml")
    for mapping in declared:
        files = mapping.get("vars")
        for file in (file for file in (files if isinstance(files, list) else ()) if isinstance(file, str)):
            path = os.path.normpath(os.path.join(os.path.dirname(name), str(mapping.get("wdir", "")), file))
            if path.startswith(("/", "..")):
                raise InputError(f"{name}: reads its variables from {file}, outside the repository")
            yield path.partition(":")[0]


def files_of_dvc(root: Path) -> Iterator[Path]:
    """List the files that DVC reads when it opens a repository: stages and their parameters."""
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if not is_reserved(name)]
        for name in names:
            if name in ("dvc.yaml", "dvc.lock", "params.yaml") or name.endswith(".dvc"):
                yield Path(folder, name)


def check_sizes(root: Path) -> None:
    """Raise InputError for a record that is too large for memory, also after unpacking."""
    for path in (path for place in _RECORDS for path in (root / place).rglob("*") if path.is_file()):
        if path.suffix in (".json", ".jsonl", ".gz") and _unpacked(path) > _LARGEST_RECORD:
            name, most = from_root(str(root), str(path)), f"more than {_LARGEST_RECORD >> 20} MiB"
            raise InputError(f"{name}: {most}, and no record of a comparison is so large")


def _unpacked(path: Path) -> int:
    """Return a file's size; of a compressed file the unpacked size, up to the first damage or the limit."""
    if path.suffix != ".gz":
        return path.stat().st_size
    size = 0
    with suppress(gzip.BadGzipFile, EOFError, zlib.error), gzip.open(path) as file:
        while size <= _LARGEST_RECORD and (chunk := file.read(2**20)):
            size += len(chunk)
    return size
