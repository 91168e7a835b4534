"""The files of suites: each may use tables and other suites, and change parts of them.

`suites/NAME.yaml` is a params.yaml, complete or in a shorter form: docs/suites.md. This module completes it into the
plain params.yaml that DVC reads.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from dvcfleet.errors import NoRepositoryError
from dvcfleet.repository import root_around
from merganser.config.completing import Addition, additions, completed, filled
from merganser.config.inputs import SECTIONS
from merganser.errors import InputError, did_you_mean
from merganser.flows.suites.shipped import shipped
from merganser.limits import read_small, read_yaml
from merganser.tasks.code_record import RECORD

SUITES = Path("suites")
TABLES = SUITES / "tables"
POINTERS = TABLES / "pointers.yaml"
ABOUT, EACH, EXTENDS, GRIDS = "about", "each", "extends", "grids"  # the words that a params.yaml does not have
COMPARED = (*SECTIONS, "methods", "studies")  # the sections that grids have of their own
ORDER = (  # in which sections are written; others come after them
    *("seed", "base", "parameters", "published", "tasks", "unseen", "decompose"),
    *("joints", "differences", "statistics", "learned", "embeddings", "searches", "routers", "surgery"),
    *("methods", "merge", "evaluation"),
)
WIDTH = 150  # characters a line, above which a mapping has a line a key
TASK = "{}"  # in a source that all tasks have: the task's name
_PLAIN = re.compile(r"[A-Za-z]([\w ./'-]*[\w.'-])?")  # text that needs no quotes
_OTHER = re.compile(r"true|false|null|yes|no|on|off|y|n", re.I)  # what some reader of YAML takes for another value
_FROM = re.compile(r"\A# From suites/.*\n\n?")


def suite_names(root: Path) -> list[str]:
    """List the suites: the files of `suites/`."""
    return sorted({path.stem for place in suite_folders(root) for path in (place / SUITES).glob("*.yaml")})


def suites_root(path: Path) -> Path:
    """Return the repository around a path, whose suites are listed; outside a repository, the package's folder."""
    try:
        return root_around(path)
    except NoRepositoryError:
        return shipped()


def suite_folders(root: Path) -> list[Path]:
    """List the folders of suites and tables: the repository's, and for a comparison also the package's."""
    return [root, shipped()] if (root / RECORD).is_file() else [root]


def at(root: Path, path: Path) -> Path:
    """Return a file's first place in these folders; if it is in none, its place in the repository."""
    return next((place / path for place in suite_folders(root) if (place / path).is_file()), root / path)


def read_suite(root: Path, name: str) -> dict[str, Any]:
    """Read a suite's file with all that it extends; raise InputError if it has a mistake."""
    return _read(root, name, SUITES / f"{name}.yaml", ())


def suite_params(root: Path, name: str, *, grids: bool = False) -> tuple[dict[str, Any], list[Addition]]:
    """Return the content of a suite's params.yaml, and the defaults that no file sets.

    `grids`: that of its second comparison, with searched parameters. Raises InputError if it has none.
    """
    content = read_suite(root, name)
    _, searched, each = (content.pop(word, None) for word in (ABOUT, GRIDS, EACH))
    tasks = content.get("tasks")
    if isinstance(each, dict) and isinstance(tasks, dict):
        content["tasks"] = {task: _with_each(task, each, own) for task, own in tasks.items()}
    if grids:
        if not isinstance(searched, dict):
            raise InputError(f"{SUITES}/{name}.yaml has no {GRIDS}: it searches nothing; leave --grids out")
        content = merged({key: value for key, value in content.items() if key not in COMPARED}, searched)
    added = additions(content)
    content = filled(content, added)
    return {key: content[key] for key in ORDER if key in content} | content, added


def suite_text(root: Path, name: str, *, grids: bool = False) -> str:
    """Return the text of a suite's params.yaml; if the suite is a complete file, its comments stay."""
    path = SUITES / f"{name}.yaml"
    if not grids and not {ABOUT, EACH, EXTENDS, GRIDS} & read_once(root, path).keys():
        return without_head(completed(read_small(at(root, path)).decode(), str(path))[0])
    return params_text(suite_params(root, name, grids=grids)[0])


def with_head(text: str, name: str, *, grids: bool = False) -> str:
    """Return a params.yaml with a first line that names its suite."""
    command = f"merganser use {name}{' --grids' if grids else ''}"
    return f"# From {SUITES}/{name}.yaml, by `{command}`: docs/params.md.\n\n{text}"


def without_head(text: str) -> str:
    """Return a params.yaml without the line that names its suite."""
    return _FROM.sub("", text)


def merged(below: Any, own: Any) -> Any:
    """Return a content with changes: by JSON Merge Patch (RFC 7396), where a list selects a mapping's items by name.

    Raises InputError for an unknown name.

    >>> merged({"ties": {"density": 0.2}, "dare": {}, "average": {}}, {"ties": {"scaling": 0.3}, "dare": None})
    {'ties': {'density': 0.2, 'scaling': 0.3}, 'average': {}}
    >>> merged({"ties": {"density": 0.2}, "dare": {}, "average": {}}, ["average", {"ties": {"scaling": 0.3}}])
    {'average': {}, 'ties': {'density': 0.2, 'scaling': 0.3}}
    """
    if isinstance(below, dict) and isinstance(own, list):
        return dict(_taken(below, own))
    if not isinstance(below, dict) or not isinstance(own, dict):
        return own
    result = dict(below)
    for key, value in own.items():
        if key in below and value is None:
            del result[key]
        else:
            result[key] = _at(key, below.get(key), value)
    return result


def params_text(content: Mapping[str, Any]) -> str:
    """Return the text of a params.yaml: one line for each entry, or for each key of a long entry."""
    return "\n".join("\n".join(_lines(key, value, 0)) + "\n" for key, value in content.items())


def pointers(root: Path) -> dict[Path, Any]:
    """Return the content of each pointer file that a suite may name, by path, from the table of pointers."""
    file = at(root, POINTERS)
    table = read_once(root, POINTERS) if file.is_file() else {}
    if not all(isinstance(named, dict) for named in table.values()):
        raise InputError(f"{POINTERS}: expected a mapping of names to pointers for each folder")
    return _placed(file.absolute(), _state(file))


def pointer_text(content: Mapping[str, Any]) -> str:
    """Return a pointer file's text."""
    return "".join(f"{_flow(key)}: {_flow(value)}\n" for key, value in content.items())


def read_once(root: Path, path: Path) -> dict[str, Any]:
    """Return the content of a file that is a mapping; read it once until it changes. Raises InputError."""
    file = at(root, path)
    content = _parsed(file.absolute(), _state(file))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping")
    return content


def _read(root: Path, name: str, path: Path, within: tuple[str, ...]) -> dict[str, Any]:
    if name in within:
        raise InputError(f"{path}: extends itself, by way of {', '.join(within)}")
    own = read_once(root, path)
    named = own.get(EXTENDS, [])
    below: dict[str, Any] = {}
    for named_one in named if isinstance(named, list) else [named]:
        below = merged(below, _read(root, named_one, _place(root, named_one, path), (*within, name)))
    try:
        return _extended(below, {key: value for key, value in own.items() if key != EXTENDS})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _place(root: Path, name: Any, path: Path) -> Path:
    """Return the file of a name in `extends`: a table's or a suite's."""
    tables = {
        table.stem: TABLES / table.name for place in suite_folders(root) for table in (place / TABLES).glob("*.yaml")
    }
    known = {each: SUITES / f"{each}.yaml" for each in suite_names(root)} | tables
    if not isinstance(name, str) or name not in known:
        raise InputError(f"{path}: {EXTENDS}: no suite or table is called {name!r}{did_you_mean(str(name), known)}")
    return known[name]


def _state(path: Path) -> tuple[int, int] | None:
    stat = path.stat() if path.is_file() else None
    return stat and (stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=100)
def _parsed(path: Path, _state: tuple[int, int] | None) -> Any:
    return read_yaml(path)


@lru_cache(maxsize=10)
def _placed(path: Path, state: tuple[int, int] | None) -> dict[Path, Any]:
    table = _parsed(path, state) if state else {}
    return {Path(folder) / f"{name}.yaml": each for folder, named in table.items() for name, each in named.items()}


def _extended(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the extended content with a file's changes; if it lists entries, only with the inputs that these read.

    The same holds for its grids.
    """
    content: dict[str, Any] = merged(below, own)
    if isinstance(own.get(GRIDS), dict):
        content[GRIDS] = _extended(_named(below, GRIDS), own[GRIDS])
    if not isinstance(own.get("methods"), list) or not isinstance(content["methods"], dict):
        return content
    return _pruned(content, [section for section in SECTIONS if section in below], own)


def only_what_is_read(content: Mapping[str, Any], entries: list[str]) -> dict[str, Any]:
    """Return the content of a params.yaml with some of its entries, and with the inputs that these read."""
    chosen = {**content, "methods": {name: content["methods"][name] for name in entries}}
    return _pruned(chosen, [section for section in SECTIONS if section in chosen], {})


def _pruned(content: dict[str, Any], sections: list[str], own: dict[str, Any]) -> dict[str, Any]:
    """Keep those parts of the sections that entries read, and those that a file declares itself."""
    needed = _needed(content)
    for section in (section for section in sections if isinstance(content.get(section), dict)):
        kept = needed | {f"{section}/{name}" for name in _named(own, section)}
        content[section] = {name: each for name, each in content[section].items() if f"{section}/{name}" in kept}
    return {key: value for key, value in content.items() if key not in SECTIONS or value}


def _needed(content: dict[str, Any]) -> set[str]:
    """Return the places that entries read, such as learned/NAME, and the places that those are of."""
    todo, needed = list(content["methods"].values()), set[str]()
    while todo:
        about = todo.pop()
        for place in (str(about.get("reads")), str(about.get("of"))) if isinstance(about, dict) else ():
            section, _, name = place.partition("/")
            if section in SECTIONS and place not in needed:
                needed.add(place)
                todo.append(_named(content, section).get(name))
    return needed


def _named(content: dict[str, Any], section: str) -> dict[str, Any]:
    """Return what a section declares, by name; empty if it is no mapping, which a later check refuses."""
    value = content.get(section)
    return value if isinstance(value, dict) else {}


def _taken(below: dict[str, Any], names: list[Any]) -> Iterator[tuple[str, Any]]:
    for item in names:
        name, change = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, {})
        if not isinstance(name, str):
            raise InputError(f"expected names, or a name: {{what it changes}}, got {name!r}")
        if not change and name not in below:
            raise InputError(f"there is no {name!r} to take{did_you_mean(name, below)}")
        yield name, _at(name, below.get(name), change) if change else below[name]


def _at(key: str, below: Any, own: Any) -> Any:
    try:
        return merged(below, own)
    except InputError as error:
        raise InputError(f"{key}: {error}") from error


def _with_each(task: str, each: dict[str, Any], own: Any) -> Any:
    """Return a task with the values that all tasks share, its source and kind first."""
    if not isinstance(own, dict):
        return own
    completed_task = dict(own)
    for key, value in each.items():
        if isinstance(value, dict) and isinstance(own.get(key, {}), dict):
            completed_task[key] = _with_each(task, value, own.get(key, {}))
        elif key not in own:
            completed_task[key] = str(value).replace(TASK, task) if key == "source" else value
    first = {key: completed_task[key] for key in ("source", "kind") if key in completed_task}
    return first | {key: value for key, value in completed_task.items() if value is not None}


def _lines(key: str, value: Any, depth: int) -> Iterator[str]:
    """Write a key of a params.yaml: entries on lines of their own, everything else on one line if it fits."""
    start = f"{'  ' * depth}{_flow(key)}:"
    line = f"{start} {_flow(value)}"
    named = isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values())
    if len(line) <= WIDTH and not (depth == 0 and named):
        yield line
    elif isinstance(value, dict):
        yield start
        for name, each in value.items():
            yield from _lines(name, each, depth + 1)
    elif isinstance(value, list):
        yield f"{start} ["
        yield from _filled([_flow(each) for each in value], "  " * (depth + 1))
    else:
        yield line


def _filled(pieces: list[str], indent: str) -> Iterator[str]:
    """Write the items of a list, as many on a line as fit."""
    line = indent + pieces[0]
    for piece in pieces[1:]:
        if len(line) + len(piece) + 3 > WIDTH:
            yield f"{line},"
            line = indent + piece
        else:
            line += f", {piece}"
    yield f"{line}]"


def _flow(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _OTHER.fullmatch(value):
        return value
    if isinstance(value, float) and not isfinite(value):
        return ".nan" if isnan(value) else f"{'-' * (value < 0)}.inf"
    return json.dumps(value, ensure_ascii=False, default=str)
