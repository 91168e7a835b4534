"""Load `params.yaml` and report every mistake in it before a run, all in one message."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from merganser.config import CHECKED, PARAMS
from merganser.config.completing import addition_names, additions, completed, filled, missing_model, tasks_without_kind
from merganser.config.inputs import INPUTS, SECTIONS
from merganser.config.mistakes import Mistake, abbreviate, mistakes_in, repaired
from merganser.config.params import Params
from merganser.config.sections import NAME, STUDIED, TAKEN_COLUMNS
from merganser.config.text import line_of, value_at
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.limits import read_small, read_yaml
from merganser.outputs import replacing

Further = Callable[[Params], Iterable[Mistake]]  # lists mistakes that are not in the file alone


def load_params(path: Path = PARAMS, sources: Further = lambda params: []) -> Params:
    """Read and check a `params.yaml`, with defaults filled in; raise InputError that lists all mistakes.

    Stages skip the checks that import every method, since a run has done them. `sources`: lists mistakes in the
    files that it names.
    """
    if CHECKED in os.environ and os.environ[CHECKED] == sha256_of(path):
        return read_params(path)
    return check_params(read_yaml(path), path, sources, read_small(path).decode())


def check_params(content: Any, path: Path, sources: Further = lambda params: [], text: str = "") -> Params:
    """Check the content of a `params.yaml` as `load_params` does; `path`, `text`: of the file, for the messages."""
    params, mistakes = _read(content, path, path.parent)
    from merganser.config.entries import usage_mistakes  # imports torch
    from merganser.config.tasks import task_mistakes, vocabulary_mistakes

    if params is not None:
        wrong = [mistake.place for mistake in mistakes]
        later = [*task_mistakes(params), *usage_mistakes(params), *vocabulary_mistakes(params), *sources(params)]
        mistakes += [one for one in later if not one.follows(wrong)]
    _refuse(path, mistakes, text)
    assert params is not None, "a file without mistakes is one"
    return params


def read_params(path: Path) -> Params:
    """Read a `params.yaml` as `load_params` does, without checking the models, data and methods that it names."""
    return check_shape(read_yaml(path), path, path.parent, read_small(path).decode())


def check_shape(content: Any, path: Path, folder: Path | None = None, text: str = "") -> Params:
    """Check names, keys and types as `check_params` does, but nothing that needs torch.

    `folder`: the root of relative sources; None: the sources' files are not read.
    """
    params, mistakes = _read(content, path, folder)
    _refuse(path, mistakes, text)
    assert params is not None, "a file without mistakes is one"
    return params


def _read(content: Any, path: Path, folder: Path | None) -> tuple[Params | None, list[Mistake]]:
    """Return a file's valid part, and the mistakes in its names and its shape.

    The part is None if too much is wrong. Raises InputError if the content is no params.yaml at all.
    """
    content = filled(content, additions(content, folder))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(Params.model_fields)}")
    if "extends" in content:
        raise InputError(
            f"{path}: extends: only a suite may have it, since DVC reads params.yaml as it stands; move this one to "
            "suites/NAME.yaml, and `merganser use NAME` completes it"
        )
    right = repaired(content, Params)
    mistakes = [*_name_mistakes(content), *mistakes_in(content, Params), *_clash_mistakes(content)]
    mistakes += missing_model(content, folder) if folder else []
    for place, advice in (tasks_without_kind(content, folder) if folder else {}).items():
        text = f"missing, and it does not follow from the data: {advice}, or name the kind (docs/kinds.md)"
        mistakes.append(Mistake((*place, "kind"), text))
    return None if right is None else Params.model_validate(right), mistakes


def _refuse(path: Path, mistakes: list[Mistake], text: str) -> None:
    """Raise InputError if there are mistakes, in the order of their lines in the file's text."""
    if mistakes:
        root = YAML(typ="safe").compose(text) if text else None
        located = sorted(((line_of(root, each.place) or 0, str(each)) for each in mistakes), key=itemgetter(0))
        lines = [f"{path}{f', line {line}' if line else ''}: {text}" for line, text in located]
        raise InputError("\n".join(dict.fromkeys(lines)))


def complete_file(path: Path) -> str | None:
    """Write missing keys that DVC needs into a valid `params.yaml`; return what was added, or None.

    Raises InputError for a file with mistakes, and leaves it as it is.
    """
    text, added = completed(read_small(path).decode(), str(path), path.parent)
    if not added:
        return None
    load_params(path)
    with replacing(path) as out:
        out.write(text.encode())
    return f"{path}: added the missing values: {addition_names(added)}"


def _name_mistakes(content: dict[Any, Any]) -> Iterator[Mistake]:
    """Check names: they become folder names and words of a shell command, and must be safe as both."""
    ablations = value_at(content, ("studies", "ablations"))
    steps = [("studies", "ablations", name, "steps") for name in ablations] if isinstance(ablations, dict) else []
    sections = [(name,) for name in ("tasks", "unseen", *SECTIONS, "methods", "vocabularies")]
    for section in (*sections, *STUDIED, *steps):
        names = value_at(content, section)
        for name in names if isinstance(names, dict) else []:
            if isinstance(name, str) and not NAME.fullmatch(name):
                rule = "use at most 100 letters, digits, - and _, the first a letter or digit"
                yield Mistake((*section, name), f"not a name, got {abbreviate(name)}; {rule}")
            elif name in TAKEN_COLUMNS and section[0] in ("tasks", "unseen"):
                yield Mistake((*section, name), "a column of the report's tables has this name; rename the task")


def _clash_mistakes(content: dict[Any, Any]) -> Iterator[Mistake]:
    """Find names that would give two stages the same name."""
    by_task = [("methods", "tasks"), ("methods", "unseen")]
    by_task += [(name, "tasks") for name, each in INPUTS.items() if each.by_task]
    for section, of_tasks in by_task:
        firsts, tasks = content.get(section), content.get(of_tasks)
        if not isinstance(firsts, dict) or not isinstance(tasks, dict):
            continue
        pairs: dict[str, list[str]] = {}
        for first, task in product(firsts, tasks):
            pairs.setdefault(f"{first}-{task}", []).append(str(first))
        for stage, clashes in pairs.items():
            if len(clashes) > 1:
                pairs_of = f"{len(clashes)} pairs of names join to {stage!r}, each of {section} and {of_tasks}"
                yield Mistake((section, clashes[-1]), f"{pairs_of}; rename one of them")
