"""Read untrusted files within limits on their size and nesting, and on where links may lead."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from merganser.errors import InputError

SMALL = 2**20  # bytes, the limit for files that people write by hand
DEPTH = 100  # nesting levels of a YAML file
VALUES = 100_000  # in a YAML file with its aliases expanded
EXPANDED = 100  # times the bytes of the files: more than text and numbers gain by compression
SPARE = 2**28  # bytes that may be expanded to whatever the size of the files
# The content-addressed caches of DVC and the hub's client, which place files as links into their cache.
_STORE = re.compile(r"/(blobs/[0-9a-f]{40,64}|(files/md5/)?[0-9a-f]{2}/[0-9a-f]{30})$")


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def check_file(path: Path) -> None:
    """Refuse what is not a plain file, by its kind: to open a named pipe waits for ever, and a device may have no end.

    Raises FileNotFoundError where there is nothing.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: {_KINDS[stat.S_IFMT(mode)]}, where a file is expected; put a plain file there")


def check_files(folder: Path) -> None:
    """Refuse a folder that has a named pipe, a socket or a device in it: libraries open what they find there."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_dir():
            check_file(path)


def read_small(path: Path, limit: int = SMALL) -> bytes:
    """Read a file; raise InputError if it is larger than `limit` bytes, or no plain file."""
    check_file(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: larger than {limit >> 10} KiB, the limit for files of this kind; fetch it again")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if it is malformed, nested too deeply, or repeats a key."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is repeated")
    return content


def check_link(file: Path, folder: Path) -> None:
    """Refuse a link that leads out of its folder: a downloaded folder must not pull in other files of this machine.

    Links into DVC's cache and the hub's are allowed.
    """
    target, place = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    if not (target.is_relative_to(place) or _STORE.search(str(target)) or _is_of_snapshot(target, place)):
        raise InputError(f"{file}: a link to {target}, outside its folder; replace it by the file itself")


def _is_of_snapshot(target: Path, folder: Path) -> bool:
    """Tell whether a file is in the same repository of the hub's cache as a folder, whatever its hub names hashes."""
    snapshots = next((place for place in folder.parents if place.name == "snapshots"), None)
    return snapshots is not None and target.parent == snapshots.parent / "blobs"


def check_plain(name: str, where: Path) -> None:
    """Refuse a file name, as found in another file, that could lead out of that file's folder."""
    if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
        raise InputError(f"{where}: names the file {name!r} outside its folder; only plain file names are read")


def read_yaml(path: Path) -> Any:
    """Read a YAML file as DVC reads it; raise InputError with the line of an error; repeated keys are errors."""
    try:
        return parse_yaml(read_small(path).decode(), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error})") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML 1.2 as DVC does: `1e-4` is a number, `no` is a string, a repeated key is an error."""
    try:
        check_depth(text)
        content = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        tab = "; indent with spaces, not tabs" if mark and text[mark.index :][:1] == "\t" else ""
        problem = str(error.problem or error.context)
        said = "another document; write each into a separate file" if "another document" in problem else problem
        raise InputError(f"{where}{line}: {said}{tab}") from error
    except Exception as error:  # int(), date() and others also raise for malformed values
        raise InputError(f"{where}: not YAML: {error}") from error
    if _is_larger_than(VALUES, content):
        raise InputError(f"{where}: more than {VALUES} values with its aliases (*name) expanded; use fewer aliases")
    if (key := next(_lists_as_keys(content), None)) is not None:
        raise InputError(f"{where}: the key {key} is a list; a key is a name")
    return content


def _lists_as_keys(content: Any) -> Iterator[list[Any]]:
    """Give the keys of mappings, at any depth, that YAML has as lists."""
    if isinstance(content, dict):
        yield from (list(key) for key in content if isinstance(key, tuple))
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    for inner in inside:
        yield from _lists_as_keys(inner)


def check_depth(text: str) -> None:
    """Refuse deep nesting before loading: the loader recurses for each level and could crash the process."""
    depth = 0
    for event in YAML(typ="safe").parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEPTH:
            raise ValueError(f"nested more than {DEPTH} deep")


def _is_larger_than(limit: int, content: Any) -> bool:
    """Tell whether there are more values than a limit, with aliases expanded."""
    todo, count = [content], 0
    while todo and count <= limit:
        current = todo.pop()
        count += 1
        if isinstance(current, dict):
            todo += [*current, *current.values()]
        elif isinstance(current, list | tuple | set | frozenset):
            todo += current
    return count > limit
