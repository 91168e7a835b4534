"""Load `params.yaml` and refuse every mistake in it before any work, all of them in one message."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from merganser.config.params import NAME, Params
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_yaml

NEEDED = (("tasks",), ("methods",))


def load_params(path: Path) -> Params:
    """Read and check a `params.yaml`; raise InputError that lists every mistake with its place."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(Params.model_fields)}")
    mistakes = [*_name_mistakes(content), *_shape_mistakes(content), *_clash_mistakes(content)]
    if not mistakes:
        from merganser.config.entries import usage_mistakes  # imports torch: only when the rest of the file is right

        params = Params.model_validate(content)
        mistakes = usage_mistakes(params)
    if mistakes:
        raise InputError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return params


def _name_mistakes(content: dict[Any, Any]) -> list[str]:
    """Check names: they become folders and words of a shell command, which they must not leave."""
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


def _clash_mistakes(content: dict[Any, Any]) -> list[str]:
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


def _shape_mistakes(content: dict[Any, Any]) -> list[str]:
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
        none = "; leave it out for none" if got is None and _may_be_left_out(place) else ""
        return f"{where}: expected a mapping, got {_shown(got)}{none}"
    if kind == "string_pattern_mismatch":
        return f"{where}: must have {{}} once, where the class name goes, and no other brace, got {_shown(got)}"
    near = did_you_mean(str(got)[:200], re.findall("'(.+?)'", mistake["msg"]))
    return f"{where}: {mistake['msg']}, got {_shown(got)}{near}"


def _may_be_left_out(place: tuple[str | int, ...]) -> bool:
    kind = _kind_at(place[:-1])
    return hasattr(kind, "model_fields") and not kind.model_fields[place[-1]].is_required()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _keys_at(place: tuple[str | int, ...]) -> list[str]:
    """List the keys of the section at a place in the file."""
    return list(_kind_at(place).model_fields)


def _kind_at(place: tuple[str | int, ...]) -> Any:
    """Return the type of what stands at a place in the file."""
    kind: Any = Params
    for part in place:
        # A map of names (tasks, methods) has any keys, all of one kind.
        kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    return kind
