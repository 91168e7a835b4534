"""Read `params.yaml` and refuse every mistake in it before any work, all of them in one message.

The file holds choices only, so every key must be there: defaults live in the methods' signatures, paths of outputs in
`dvc.yaml`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from merganser.errors import InputError, did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
ROUNDING = 1e-9
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """A section of the file: exactly these keys, exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Base(Strict):
    """The model that all tasks were fine-tuned from."""

    source: Text
    family: Literal["open_clip"]


class Parameters(Strict):
    """Which parameters are merged (name patterns; the rest stays as in the base), and which count as matrices."""

    merged: Annotated[list[Text], Field(min_length=1)]
    matrices: Literal["linear", "any_2d"]


class Data(Strict):
    """A task's data set, and the prompts (with `{}` for the class name) that make its zero-shot head."""

    source: Text
    templates: Annotated[list[Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")]], Field(min_length=1)]


class Task(Strict):
    """A fine-tuned checkpoint and its data."""

    source: Text
    data: Data


class Decompose(Strict):
    """The share of each matrix's singular vectors that is kept, and the dtype they are stored in."""

    rank_fraction: Annotated[float, Field(gt=0, le=1)]
    dtype: Literal["float32", "float16", "bfloat16"]


class Entry(Strict):
    """The use of a registered method under a name: what it reads, and its parameters."""

    model_config = ConfigDict(extra="allow")

    method: Text
    reads: Literal["deltas", "svd"]

    @property
    def values(self) -> dict[str, Any]:
        """The method's own parameters, as written."""
        return dict(self.model_extra or {})


class Evaluation(Strict):
    """The split that is measured on, and the images per batch."""

    split: Literal["validation", "test"]
    batch_size: Annotated[int, Field(ge=1)]


class TaskStudy(Strict):
    """Entries that merge subsets of the tasks: at most so many of each size, the same ones for every entry."""

    subsets: Annotated[int, Field(ge=1)]
    methods: dict[str, Entry]


class RankStudy(Strict):
    """The shares of each spectrum at which every task's own delta is measured."""

    fractions: list[Annotated[float, Field(gt=0, le=1)]]


class Studies(Strict):
    """What is measured beside the comparison; `methods: {}` and `fractions: []` measure nothing."""

    tasks: TaskStudy
    rank: RankStudy


class Params(Strict):
    """The whole of `params.yaml`."""

    seed: Annotated[int, Field(ge=0)]
    base: Base
    parameters: Parameters
    tasks: Annotated[dict[str, Task], Field(min_length=1)]
    decompose: Decompose
    methods: Annotated[dict[str, Entry], Field(min_length=1)]
    evaluation: Evaluation
    studies: Studies


def load_params(path: Path) -> Params:
    """Read and check a `params.yaml`; raise InputError that lists every mistake with its place."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(Params.model_fields)}")
    mistakes = [*_misnamed(content), *_misshapen(content), *_clashes(content)]
    if not mistakes:
        params = Params.model_validate(content)
        for name, entry in params.methods.items():
            mistakes += _misused(params, f"methods.{name}", entry, [len(params.tasks)])
        mistakes += _misplanned(params)
    if mistakes:
        raise InputError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return params


def task_of(params: Params, name: str) -> Task:
    """Return a declared task; raise InputError with the nearest name when there is none."""
    if name not in params.tasks:
        raise InputError(f'no task "{name}" in params.yaml{did_you_mean(name, params.tasks)}')
    return params.tasks[name]


def entry_of(params: Params, name: str) -> Entry:
    """Return a declared entry of methods; raise InputError with the nearest name when there is none."""
    if name not in params.methods:
        raise InputError(f'no entry "{name}" under methods in params.yaml{did_you_mean(name, params.methods)}')
    return params.methods[name]


def subset_sizes(tasks: int) -> range:
    """Return the sizes of the subsets that a study of the number of tasks merges: from two to all."""
    return range(min(2, tasks), tasks + 1)


def study_of(params: Params, name: str) -> Entry:
    """Return a declared entry of the study of the number of tasks; raise InputError with the nearest name."""
    entries = params.studies.tasks.methods
    if name not in entries:
        raise InputError(f'no entry "{name}" under studies.tasks.methods in params.yaml{did_you_mean(name, entries)}')
    return entries[name]


def read_yaml(path: Path) -> Any:
    """Read a YAML file as DVC reads it; raise InputError with the line of a mistake, a repeated key included."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error})") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML 1.2 as DVC does: `1e-4` is a number, `no` is a word, a repeated key is an error."""
    try:
        return YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: {error.problem or error.context}") from error
    except YAMLError as error:
        raise InputError(f"{where}: not YAML: {error}") from error


def _misnamed(content: dict[Any, Any]) -> list[str]:
    """Names become folders and words of a shell command: refuse what could leave the folder or the command."""
    mistakes = []
    for section in ("tasks", "methods", "studies.tasks.methods"):
        names = _section(content, section)
        for name in names if isinstance(names, dict) else []:
            if not isinstance(name, str):
                mistakes.append(f'{section}.{name}: a name must be text, got {name!r}; write "{name}"')
            elif not NAME.fullmatch(name):
                rule = "use letters, digits, - and _, the first a letter or digit"
                mistakes.append(f"{section}.{name}: not a name, got {name!r}; {rule}")
    return mistakes


def _section(content: Any, place: str) -> Any:
    """Return what stands at a place, None where there is nothing."""
    for key in place.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _clashes(content: dict[Any, Any]) -> list[str]:
    """Find names that would make two stages or two folders one."""
    tasks, methods = (content.get(section) for section in ("tasks", "methods"))
    if not isinstance(tasks, dict) or not isinstance(methods, dict):
        return []
    mistakes = ["tasks.base: this name is taken by the base model; give the task another"] if "base" in tasks else []
    stages = Counter(f"{method}-{task}" for method in methods for task in tasks)
    for stage, count in stages.items():
        if count > 1:
            mistakes.append(f"methods, tasks: {count} pairs of names join to {stage!r}; rename an entry or a task")
    return mistakes


def _misshapen(content: dict[Any, Any]) -> list[str]:
    try:
        Params.model_validate(content)
    except ValidationError as error:
        return [_explain(mistake) for mistake in error.errors() if "[key]" not in mistake["loc"]]
    return []


def _explain(mistake: Any) -> str:
    place, kind, got = mistake["loc"], mistake["type"], mistake["input"]
    where = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return f"{where}: unknown key{did_you_mean(str(place[-1]), _keys_at(place[:-1]))}"
    if kind == "missing":
        return f"{where}: missing; expected {', '.join(_keys_at(place[:-1]))}"
    if kind == "too_short" or (kind == "dict_type" and got is None):
        return f"{where}: there are none; declare at least one"
    if kind in ("dict_type", "model_type"):
        return f"{where}: expected a mapping, got {got!r}"
    if kind == "string_pattern_mismatch":
        return f"{where}: must have {{}} once, where the class name goes, and no other brace, got {got!r}"
    near = did_you_mean(str(got), re.findall("'(.+?)'", mistake["msg"]))
    return f"{where}: {mistake['msg']}, got {got!r}{near}"


def _keys_at(place: tuple[str | int, ...]) -> list[str]:
    """List the keys of the section at a place in the file."""
    kind: Any = Params
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    return list(kind.model_fields)


def _misused(params: Params, where: str, entry: Entry, counts: Iterable[int]) -> list[str]:
    """Check one entry against the signature of its method, for every number of tasks that it merges."""
    from merganser import registry  # brings torch: only once the rest of the file is right

    try:
        method = registry.get(entry.method)
    except InputError as error:
        return [f"{where}: {error}"]
    mistakes = []
    if entry.reads != method.reads:
        mistakes.append(f"{where}.reads: {method.name} reads {method.reads}, got {entry.reads!r}")
    try:
        values = method.validate(where, entry.values)
    except InputError as error:
        return [*mistakes, *str(error).splitlines()]
    kept, share_of = params.decompose.rank_fraction, method.rank_fraction or (lambda tasks, **values: 0.0)
    for count in counts:
        needed = share_of(count, **values)
        if needed > kept + ROUNDING:
            reason = f"needs the first {needed:g} of each spectrum for {count} tasks"
            return [*mistakes, f"{where}: {reason}, decompose.rank_fraction is {kept:g}; raise it"]
    return mistakes


def _misplanned(params: Params) -> list[str]:
    """Check the studies: what an entry needs for the fewest tasks, and whether the vectors of a fraction are kept."""
    mistakes = []
    for name, entry in params.studies.tasks.methods.items():
        where = f"studies.tasks.methods.{name}"
        mistakes += _misused(params, where, entry, subset_sizes(len(params.tasks))) or _unfit(where, entry)
    kept = params.decompose.rank_fraction
    for fraction in params.studies.rank.fractions:
        if kept + ROUNDING < fraction < 1:
            reason = f"decompose.rank_fraction keeps the first {kept:g} of each spectrum"
            mistakes.append(
                f"studies.rank.fractions: {fraction:g}: {reason}; raise it, or write 1.0 for the whole delta"
            )
    return mistakes


def _unfit(where: str, entry: Entry) -> list[str]:
    """Refuse what has no meaning, or no input, for a subset of the tasks."""
    from merganser import registry

    if entry.reads == "differences":
        reason = "difference vectors start from a merge of all tasks, so a subset's would hold the other tasks too"
        return [f"{where}.reads: {reason}; study a method that reads deltas or svd"]
    if registry.get(entry.method).embeddings:
        return [
            f"{where}: {entry.method} needs the tasks' text embeddings, which this study does not read; take it out"
        ]
    return []
