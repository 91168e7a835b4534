"""Load `params.yaml` and refuse every mistake in it before any work, all of them in one message."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from merganser.config import CHECKED, PARAMS
from merganser.config.completing import addition_names, additions, completed, filled, unread, value_at
from merganser.config.explaining import abbreviate, mistakes_in, with_line_numbers
from merganser.config.inputs import INPUTS, SECTIONS
from merganser.config.params import NAME, Params
from merganser.config.repairing import follows, repaired
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.limits import read_small, read_yaml
from merganser.outputs import replacing

Further = Callable[[Params], Iterable[str]]  # lists mistakes that are not in the file alone


def load_params(path: Path = PARAMS, sources: Further = lambda params: []) -> Params:
    """Read and check a `params.yaml`, what it leaves out filled in; raise InputError that lists all mistakes.

    A run checked the file before its stages: each of them would import every method only to check it again. `sources`:
    lists mistakes in what the file names.
    """
    content = read_yaml(path)
    if os.environ.get(CHECKED) == sha256_of(path):
        return read_params(path)
    return check_params(content, path, sources, read_small(path).decode())


def check_params(content: Any, path: Path, sources: Further = lambda params: [], text: str = "") -> Params:
    """Check the content of a `params.yaml` as `load_params` does; `path`, `text`: of the file that mistakes name."""
    params, mistakes = _read(content, path)
    from merganser.config.entries import usage_mistakes  # imports torch
    from merganser.config.tasks import task_mistakes

    if params is not None:
        wrong = [mistake.partition(": ")[0] for mistake in mistakes]
        later = [*task_mistakes(params), *usage_mistakes(params), *sources(params)]
        mistakes += [one for one in later if not follows(one, wrong, SECTIONS)]
    _refuse(path, mistakes, text)
    assert params is not None, "a file without mistakes is one"
    return params


def read_params(path: Path) -> Params:
    """Read a `params.yaml` as `load_params` does, without a look at the models, data and methods that it names."""
    params, mistakes = _read(read_yaml(path), path)
    _refuse(path, mistakes, read_small(path).decode())
    assert params is not None, "a file without mistakes is one"
    return params


def _read(content: Any, path: Path) -> tuple[Params | None, list[str]]:
    """Return what a file says, and the mistakes in its names and its shape: what is wrong is not in the first.

    It is None where too much is wrong. Raises InputError where the content is no params.yaml at all.
    """
    content = filled(content, additions(content, path.parent))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(Params.model_fields)}")
    if "extends" in content:
        raise InputError(
            f"{path}: extends: only a suite may have it, since DVC reads params.yaml as it stands; move this one to "
            "suites/NAME.yaml, and `merganser use NAME` completes it"
        )
    right = repaired(content, Params)
    mistakes = [*_name_mistakes(content), *mistakes_in(content, Params), *_clash_mistakes(content)]
    mistakes += unread(content, path.parent)
    return None if right is None else Params.model_validate(right), mistakes


def _refuse(path: Path, mistakes: list[str], text: str) -> None:
    if mistakes:
        found = sorted(with_line_numbers(dict.fromkeys(mistakes), text), key=lambda pair: pair[0] or 0)
        raise InputError("\n".join(f"{path}{f', line {line}' if line else ''}: {mistake}" for line, mistake in found))


def complete_file(path: Path) -> str | None:
    """Write into a right `params.yaml` what it leaves out and DVC needs; say what that was, None if it was nothing.

    Raises InputError, and leaves the file as it is, where it has a mistake.
    """
    text, added = completed(read_small(path).decode(), str(path), path.parent)
    if not added:
        return None
    load_params(path)
    with replacing(path) as out:
        out.write(text.encode())
    return f"{path}: wrote what was left out: {addition_names(added)}"


def _name_mistakes(content: dict[Any, Any]) -> list[str]:
    """Check names: they become folders and words of a shell command, which they must not leave."""
    mistakes = []
    ablations = value_at(content, ("studies", "ablations"))
    steps = (f"studies.ablations.{name}.steps" for name in ablations) if isinstance(ablations, dict) else ()
    studies = ("studies.tasks.methods", "studies.sweeps", "studies.ablations", "studies.budgets.methods", *steps)
    for section in ("tasks", "unseen", *SECTIONS, "methods", *studies, "vocabularies"):
        names = value_at(content, section.split("."))
        for name in names if isinstance(names, dict) else []:
            if not isinstance(name, str):
                mistakes.append(f'{section}.{name}: a name must be text, got {abbreviate(name)}; write "{name}"')
            elif not NAME.fullmatch(name):
                rule = "use at most 100 letters, digits, - and _, the first a letter or digit"
                mistakes.append(f"{section}.{name}: not a name, got {abbreviate(name)}; {rule}")
    return mistakes


def _clash_mistakes(content: dict[Any, Any]) -> list[str]:
    """Find names that would make two stages one."""
    mistakes = []
    by_task = [("methods", "tasks"), ("methods", "unseen")]
    by_task += [(name, "tasks") for name, each in INPUTS.items() if each.by_task]
    for section, of_tasks in by_task:
        firsts, tasks = content.get(section), content.get(of_tasks)
        if not isinstance(firsts, dict) or not isinstance(tasks, dict):
            continue
        for stage, count in Counter(f"{first}-{task}" for first in firsts for task in tasks).items():
            if count > 1:
                mistakes.append(f"{section}, {of_tasks}: {count} pairs of names join to {stage!r}; rename one of them")
    return mistakes
