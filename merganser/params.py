"""Read `params.yaml` and refuse every mistake in it before any work, all of them in one message.

The file holds choices only, so every key must be there: defaults live in the methods' signatures, paths of outputs in
`dvc.yaml`.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from merganser.errors import InputError, did_you_mean
from merganser.untrusted import read_small

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # with what is put before and behind it, it must fit a file's name
DEPTH = 100  # of a file: lists in lists in lists
VALUES = 100_000  # in a file, once what its aliases stand for is counted as often as they stand
OWN_MODELS = Path("data/checkpoints")  # as base.source: the mean of the tasks' own models
NEEDED = (("tasks",), ("methods",))
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """A section of the file: exactly these keys, exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Base(Strict):
    """The model that all tasks were fine-tuned from, or the mean of the tasks' own."""

    source: Text
    family: Literal["open_clip"]

    @property
    def is_mean(self) -> bool:
        """Tell whether the mean of the tasks' own models takes the base's place."""
        return Path(self.source) == OWN_MODELS


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
    reads: Text

    @property
    def difference(self) -> str | None:
        """The name of the difference vectors it reads, None when it reads something else."""
        return self._named("differences")

    @property
    def joint(self) -> str | None:
        """The name of the joint decompositions it reads, None when it reads something else."""
        return self._named("joints")

    @property
    def values(self) -> dict[str, Any]:
        """The method's own parameters, as written."""
        return dict(self.model_extra or {})

    def _named(self, kind: str) -> str | None:
        found, _, name = self.reads.partition("/")
        return name if found == kind and name else None


class Difference(Strict):
    """Difference vectors: the tasks' models minus what an entry of methods merged them into."""

    merged: Text


class Joint(Strict):
    """Joint decompositions of the tasks' matrices, set side by side (rows) or one above the other (columns)."""

    side: Literal["rows", "columns"]


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
    joints: dict[str, Joint]
    differences: dict[str, Difference]
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
        from merganser.usage import misused  # brings torch: only once the rest of the file is right

        params = Params.model_validate(content)
        mistakes = misused(params)
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


def difference_of(params: Params, name: str) -> Difference:
    """Return declared difference vectors; raise InputError with the nearest name when there are none of this one."""
    if name not in params.differences:
        raise InputError(f'no "{name}" under differences in params.yaml{did_you_mean(name, params.differences)}')
    return params.differences[name]


def joint_of(params: Params, name: str) -> Joint:
    """Return declared joint decompositions; raise InputError with the nearest name when there are none of this one."""
    if name not in params.joints:
        raise InputError(f'no "{name}" under joints in params.yaml{did_you_mean(name, params.joints)}')
    return params.joints[name]


def study_of(params: Params, name: str) -> Entry:
    """Return a declared entry of the study of the number of tasks; raise InputError with the nearest name."""
    entries = params.studies.tasks.methods
    if name not in entries:
        raise InputError(f'no entry "{name}" under studies.tasks.methods in params.yaml{did_you_mean(name, entries)}')
    return entries[name]


def read_yaml(path: Path) -> Any:
    """Read a YAML file as DVC reads it; raise InputError with the line of a mistake, a repeated key included."""
    try:
        return parse_yaml(read_small(path).decode(), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error})") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML 1.2 as DVC does: `1e-4` is a number, `no` is a word, a repeated key is an error."""
    try:
        _check_depth(text)
        content = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: {error.problem or error.context}") from error
    except Exception as error:  # also what int(), date() and others raise for a text that only looks like one
        raise InputError(f"{where}: not YAML: {error}") from error
    if _is_larger_than(VALUES, content):
        raise InputError(f"{where}: its aliases (*name) stand for more than {VALUES} values; use fewer of them")
    return content


def _check_depth(text: str) -> None:
    """Refuse deep nesting before it is loaded: the loader calls itself for each level, until the process dies of it."""
    depth = 0
    for event in YAML(typ="safe").parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEPTH:
            raise ValueError(f"nested more than {DEPTH} deep")


def _is_larger_than(limit: int, content: Any) -> bool:
    """Tell whether there are more values than a limit, those of an alias counted each time it stands."""
    todo, count = [content], 0
    while todo and count <= limit:
        current = todo.pop()
        count += 1
        if isinstance(current, dict):
            todo += [*current, *current.values()]
        elif isinstance(current, list | tuple | set | frozenset):
            todo += current
    return count > limit


def _misnamed(content: dict[Any, Any]) -> list[str]:
    """Names become folders and words of a shell command: refuse what could leave the folder or the command."""
    mistakes = []
    for section in ("tasks", "joints", "differences", "methods", "studies.tasks.methods"):
        names = _section(content, section)
        for name in names if isinstance(names, dict) else []:
            if not isinstance(name, str):
                mistakes.append(f'{section}.{name}: a name must be text, got {_shown(name)}; write "{name}"')
            elif not NAME.fullmatch(name):
                rule = "use at most 100 letters, digits, - and _, the first a letter or digit"
                mistakes.append(f"{section}.{name}: not a name, got {_shown(name)}; {rule}")
    return mistakes


def _section(content: Any, place: str) -> Any:
    """Return what stands at a place, None where there is nothing."""
    for key in place.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _clashes(content: dict[Any, Any]) -> list[str]:
    """Find names that would make two stages one."""
    mistakes = []
    for section in ("methods", "differences"):
        firsts, tasks = content.get(section), content.get("tasks")
        if not isinstance(firsts, dict) or not isinstance(tasks, dict):
            continue
        for stage, count in Counter(f"{first}-{task}" for first in firsts for task in tasks).items():
            if count > 1:
                mistakes.append(f"{section}, tasks: {count} pairs of names join to {stage!r}; rename one of them")
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
    if kind == "too_short" or (got is None and place in NEEDED):
        return f"{where}: there are none; declare at least one"
    if kind in ("dict_type", "model_type"):
        none = "; write {} for none" if kind == "dict_type" and got is None else ""
        return f"{where}: expected a mapping, got {_shown(got)}{none}"
    if kind == "string_pattern_mismatch":
        return f"{where}: must have {{}} once, where the class name goes, and no other brace, got {_shown(got)}"
    near = did_you_mean(str(got)[:200], re.findall("'(.+?)'", mistake["msg"]))
    return f"{where}: {mistake['msg']}, got {_shown(got)}{near}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _keys_at(place: tuple[str | int, ...]) -> list[str]:
    """List the keys of the section at a place in the file."""
    kind: Any = Params
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    return list(kind.model_fields)
