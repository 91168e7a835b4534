"""Draft a short params.yaml for models and data named on a command line, with values read from their files.

Imports torch, since reading models does.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from merganser.checkpoints.kinds import SPAN_HEADS
from merganser.config.columns import columns_by_type, features_at
from merganser.config.completing import READ, additions, filled, tasks_without_kind
from merganser.config.describing import SCHEMA_FILE
from merganser.config.inferring import SOUND_HEADS, compares_with_texts, heads_beyond, infer_task_kind, parameter_names
from merganser.config.sections import NAME, OWN_MODELS, TAKEN_COLUMNS, UNMEASURED
from merganser.config.tasks import fits
from merganser.config.text import as_flow, as_line
from merganser.errors import InputError, did_you_mean
from merganser.evaluation import get_kind, kind_names
from merganser.evaluation.data_sets import check_saved
from merganser.models import family_names
from merganser.models.naming import HEAD_NAMES
from merganser.sources.hub import COMMIT
from merganser.sources.named import HEAD, hub_name
from merganser.sources.pointers import POINTER_SUFFIXES, pointer_of, read_pointer

BASE = "base"
POINTERS = Path("sources")  # the folder of the files that name what is on a hub
METHODS = ("base", "individual", "average", "task_arithmetic", "ties", "tsv_m")
ORDER = ("source", "family", "heads", "kind", "data")
ABOUT_DATA = "a folder that DatasetDict.save_to_disk wrote, or a pointer file: docs/params.md"


@dataclass(frozen=True)
class Draft:
    """The text of a params.yaml, and a description of what was read from the models and data."""

    text: str
    read: tuple[str, ...]


def draft(models: Mapping[str, str], data: Mapping[str, str], root: Path) -> Draft:
    """Draft a params.yaml for models and data by task, each a path or a name on a hub; `base` names the base.

    `root`: the comparison's folder, which gets a pointer file for each source on a hub. Raises InputError for an
    impossible name or source.
    """
    _check_names(models, data)
    base: dict[str, Any] = {"source": str(OWN_MODELS)}
    tasks: dict[str, Any] = {}
    for name, text in models.items():
        entry = {"source": _source(name, text, root, "--models")}
        if name == BASE:
            base = entry
        else:
            tasks[name] = entry
    for name, text in data.items():
        tasks[name]["data"] = {"source": _source(f"{name}-data", text, root, "--data")}
    if heads := _heads(base, list(tasks.values()), root):
        base["heads"] = heads
    content = {"base": base, "tasks": tasks, "methods": dict.fromkeys(METHODS)}
    content = filled(content, [each for each in additions(content, root) if each[0][-1] in READ])
    for task in content["tasks"].values():
        _match_columns(task, content["base"].get("family"), root)
    advice = {place[-1]: text for place, text in tasks_without_kind(content, root).items()}
    return Draft("\n".join([*_lines(content, advice), ""]), tuple(_read(content)))


def _check_names(models: Mapping[str, str], data: Mapping[str, str]) -> None:
    for name in models:
        if not NAME.fullmatch(name):
            raise InputError(
                f"--models: {name!r} is no name: use letters, digits, - and _, the first a letter or digit"
            )
    tasks = [name for name in models if name != BASE]
    if taken := [name for name in tasks if name in TAKEN_COLUMNS]:
        raise InputError(f"--models: {taken[0]!r} is a column of the report's tables; name the task otherwise")
    if not tasks:
        raise InputError("--models: there is no task's model; name each task: --models base=SOURCE task=SOURCE")
    for name in data:
        if name not in tasks:
            raise InputError(
                f"--data: no task is called {name!r}{did_you_mean(name, tasks)}; there is {', '.join(tasks)}"
            )


def _source(name: str, text: str, root: Path, option: str) -> str:
    """Return a source for params.yaml: an absolute path, or a pointer file in `sources/`."""
    if named := hub_name(text):
        hub, revision = named
        which = {"revision": revision} if revision and COMMIT.fullmatch(revision) else {"follow": revision or HEAD}
        return _write_pointer(name, {"hub": hub, **which}, root)
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if not path.exists():
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{option}: no such file or folder: {text}{did_you_mean(path.name, beside)}")
    if path.suffix in POINTER_SUFFIXES and path.is_file():
        return _write_pointer(name, _pointer(path), root)
    if option == "--data":
        check_saved(path)
    return str(path)


def _pointer(path: Path) -> dict[str, Any]:
    """Return a copy of a pointer file's content: a run writes commits into the comparison's own files."""
    pointer = read_pointer(path)
    assert pointer is not None, "what ends as a pointer file is one"
    return pointer.model_dump(exclude_none=True)


def _write_pointer(name: str, content: dict[str, Any], root: Path) -> str:
    path = POINTERS / f"{name}.yaml"
    pointer_of(content, path)
    (root / POINTERS).mkdir(exist_ok=True)
    lines = [f"{as_line(key, value)}\n" for key, value in content.items()]
    (root / path).write_text("".join(lines), encoding="utf-8")
    return path.as_posix()


def _heads(base: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], root: Path) -> list[str]:
    """Return the patterns of parameters that tasks' models have beyond the base, else of classifiers' usual heads."""
    places = [root / str(each["source"]) for each in (base, *tasks)]
    if beyond := heads_beyond(places[0], places[1:]):
        return beyond
    names = {name for place in places for name in parameter_names(place)}
    known = (*HEAD_NAMES, *SPAN_HEADS, *SOUND_HEADS)
    return [pattern for pattern in known if any(fnmatchcase(name, pattern) for name in names)]


def _match_columns(task: dict[str, Any], family: str | None, root: Path) -> None:
    """Add to a task the data set's names of the columns that its kind reads, if one kind can then read it."""
    data = task.get("data")
    if data is None or "kind" in task or family is None:
        return
    columns = columns_by_type(features_at(root / data["source"]))
    if kind := infer_task_kind({**data, "columns": columns}, family, root / data["source"]):
        renamed = {own: name for own, name in columns.items() if own != name}
        task["data"] = {**data, "columns": renamed}
        task["kind"] = kind


def _lines(content: Mapping[str, Any], advice: Mapping[str, str]) -> Iterator[str]:
    """Write a params.yaml; keys whose values are not known become comments.

    `advice`: by task, what its data lacks to infer a kind.
    """
    yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield "# What is compared; `merganser params KEY` explains a key"
    base, family = content["base"], content["base"].get("family")
    yield "base:"
    yield from (f"  {as_line(key, base[key])}" for key in ORDER if key in base)
    if family is None:
        yield f"  # fill in family: one of {', '.join(family_names())}"
    yield "tasks:"
    for name, task in content["tasks"].items():
        yield f"  {name}:"
        yield from (f"    {as_line(key, task[key])}" for key in ORDER if key in task)
        if "kind" not in task and not (family and compares_with_texts(family)):
            yield f"    # fill in kind: {_kinds(family)}"
        if name in advice:
            yield f"    # {advice[name]}"
        if "data" not in task:
            yield f"    # fill in data: {as_flow({'source': f'datasets/{name}'})}: {ABOUT_DATA}"
    yield "methods: # base and individual are the marks: before fine-tuning, and each task by its own model"
    yield from (f"  {name}:" for name in content["methods"])


def _kinds(family: str | None) -> str:
    """List the family's kinds of task, each with the keys of `data` that it needs."""
    kinds = [name for name in kind_names() if name != UNMEASURED and (family is None or fits(get_kind(name), family))]
    needed = {
        name: [key for key, each in get_kind(name).Settings.model_fields.items() if each.is_required()]
        for name in kinds
    }
    with_keys = [f"{name} (data needs {', '.join(keys)})" if keys else name for name, keys in needed.items()]
    return f"{' or '.join(with_keys)}: docs/kinds.md"


def _read(content: Mapping[str, Any]) -> Iterator[str]:
    """Describe what was read from the files of the models and data."""
    for key in ("family", "heads"):
        if key in content["base"]:
            yield as_line(f"base.{key}", content["base"][key])
    for name, task in content["tasks"].items():
        if "kind" in task:
            yield as_line(f"tasks.{name}.kind", task["kind"])
        if columns := task.get("data", {}).get("columns"):
            yield as_line(f"tasks.{name}.data.columns", columns)
