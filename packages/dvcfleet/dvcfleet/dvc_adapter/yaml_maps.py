"""YAML files as DVC reads and rewrites them: what one version of a file has and another lacks."""

from collections.abc import Mapping, MutableMapping, MutableSequence
from copy import deepcopy
from typing import Any

STAGES = "stages"  # the section without which a dvc.yaml has lost all that a run knows of it


def parse_map(text: str) -> dict[str, Any] | None:
    """Return the map in a YAML text, empty for an empty text; None if the text holds anything else."""
    from dvc.utils.serialize import YAMLError, parse_yaml

    try:
        content = parse_yaml(text, "")
    except (YAMLError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def is_destroyed(content: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> bool:
    """Tell whether a file that was sound before holds nothing now, no map, or no stages any more."""
    return bool(before) and (not content or (STAGES in (before or {}) and STAGES not in content))


def restore_map(before: str, now: Mapping[str, Any] | None, additions: Mapping[str, Any]) -> str:
    """Return a YAML text that was sound, with all that is in the file now, and with these additions.

    Without any of these it is the text as it was.
    """
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

    content = parse_yaml_for_update(before, "")
    _update(content, now or {})
    add_missing(content, additions)
    return before if content == parse_map(before) else str(dumps_yaml(content))


def add_missing(content: Any, more: Any) -> list[str]:
    """Add to a map or a list what another has and it lacks, at any depth; return the key paths of what was added."""
    found: list[str] = []
    if isinstance(content, MutableMapping) and isinstance(more, Mapping):
        for key, value in more.items():
            if key in content:
                found += [f"{key}.{below}" for below in add_missing(content[key], value)]
            else:
                content[key] = deepcopy(value)
                found.append(str(key))
    elif isinstance(content, MutableSequence) and isinstance(more, list):
        lacking = _lacking(content, more)
        content.extend(deepcopy(lacking))
        found += map(_name, lacking)
    return found


def added_values(content: Any, before: Any) -> Any:
    """Return what a map or a list has that it had not before, at any depth; None or empty if there is nothing.

    >>> added_values({"a": 1, "b": [1, 2], "c": {"d": 1, "e": 2}}, {"a": 0, "b": [1], "c": {"d": 1}})
    {'b': [2], 'c': {'e': 2}}
    """
    if isinstance(content, Mapping) and isinstance(before, Mapping):
        news = {key: added_values(value, before[key]) if key in before else value for key, value in content.items()}
        return {key: value for key, value in news.items() if key not in before or value}
    if isinstance(content, list) and isinstance(before, list):
        return _lacking(before, content)
    return None


def _update(content: MutableMapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in now.items():
        known = content.get(key)
        if isinstance(known, MutableMapping) and isinstance(value, Mapping):
            _update(known, value)
        elif isinstance(known, MutableSequence) and isinstance(value, list):
            add_missing(known, value)
        elif key not in content or known != value:
            content[key] = deepcopy(value)


def _lacking(known: Any, items: list[Any]) -> list[Any]:
    names = set(map(_name, known))
    return [item for item in items if _name(item) not in names]


def _name(item: Any) -> str:
    """Return the name of a list's item: of a map with one key, as plots have it, the key."""
    return str(next(iter(item))) if isinstance(item, Mapping) and len(item) == 1 else str(item)
