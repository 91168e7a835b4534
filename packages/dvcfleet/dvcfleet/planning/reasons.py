"""The reasons why a stage is not up to date, as text."""

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import dpath

from dvcfleet.dvc_adapter.objects import is_whole
from dvcfleet.dvc_adapter.protocols import Dependency, Output, ParamsDependency, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params, parse_params
from dvcfleet.dvc_adapter.storing import is_as_noted
from dvcfleet.errors import FailedError

_WORDS = {"modified": "changed", "deleted": "missing", "not in cache": "not in the cache", "new": "new"}


def stage_reasons(stage: Stage) -> list[str]:
    """Return the changes of the stage itself, without those of inputs and outputs."""
    if not stage.frozen and (stage.is_callback or stage.always_changed):
        return ["always changed"]
    if not in_dvc_yaml(stage):
        return ["stage file changed"] if stage.changed_stage() else []
    # dvc.lock has no hash of any of its inputs and outputs.
    if not any(item.hash_info for item in (*stage.deps, *stage.outs)):
        return ["new stage"]
    return ["command changed"] if stage.changed_stage() else []


def dependency_reasons(dep: Dependency) -> list[str]:
    """Return how a dependency differs from the stage's last run; empty if it does not."""
    if is_params(dep) and _has_its_values(dep):
        return []
    if is_as_noted(dep):
        return []
    status = dep.status()
    if not status:
        return []
    if is_params(dep) and isinstance(status[str(dep)], dict):
        return list(_parameter_reasons(dep, status[str(dep)]))
    return [f"dep {dep} {_WORDS.get(status[str(dep)], status[str(dep)])}"]


def reasons_once() -> Callable[[Dependency], list[str]]:
    """Return `dependency_reasons` for a plan, during which no file changes: shared inputs are compared once."""
    known: dict[tuple[str, str, Any], list[str]] = {}

    def reasons(dep: Dependency) -> list[str]:
        if is_params(dep) or dep.protocol != "local":
            return dependency_reasons(dep)
        key = (dep.fs_path, str(dep), dep.hash_info)
        if key not in known:
            known[key] = dependency_reasons(dep)
        return known[key]

    return reasons


def output_reasons(out: Output) -> list[str]:
    """Return how an output differs from its stage's last result; raise FailedError for a folder's unreadable record."""
    if out.use_cache and not out.is_in_repo:
        return [f"output {out} outside the repository, where DVC caches none"]
    if is_as_noted(out):
        return []
    try:
        words = list(out.status().values())
    except (AttributeError, LookupError, TypeError) as error:  # DVC looks at no more than whether it is JSON
        path = os.path.relpath(out.cache.oid_to_path(out.hash_info.value))
        raise FailedError(f"{path}: the listing of {out} in DVC's cache is damaged; remove it") from error
    if not words and out.use_cache and not is_whole(out):
        words = ["not in cache"]
    return [f"output {out} {_WORDS.get(word, word)}" for word in words]


def _has_its_values(dep: ParamsDependency) -> bool:
    """Tell whether all parameters are those of the stage's last run; DVC would parse the file again for every stage."""
    before = dep.hash_info.value if dep.hash_info else None
    if not (isinstance(before, dict) and dep.params and set(before) == set(dep.params) and dep.exists):
        return False
    stat = os.stat(dep.fs_path)
    now = parse_params_cached(dep.fs_path, stat.st_mtime_ns, stat.st_size)
    try:
        return all(_value_at(now, key) == value for key, value in before.items())
    except KeyError:
        return False


def _value_at(params: Any, key: str) -> Any:
    """Return the value at a dotted key as DVC finds it, without a walk through the whole file; raise KeyError."""
    value = params
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value or any(sign in part for sign in "*?["):
            return dpath.get(params, key, separator=".")
        value = value[part]
    return value


@lru_cache(maxsize=8)
def parse_params_cached(path: str, modified: int, size: int) -> Any:
    """Parse a parameters file as DVC does, cached by path, modification time and size."""
    return parse_params(path)


def _parameter_reasons(dep: ParamsDependency, status: dict[str, str]) -> Iterator[str]:
    before = dep.hash_info.value or {}
    now = dep.read_params()
    where = "params" if str(dep) == dep.DEFAULT_PARAMS_FILE else f"params {dep}:"
    for key, word in status.items():
        if word != "modified":
            yield f"{where} {key} {'removed' if word == 'deleted' else 'new'}"
            continue
        for leaf, change in _leaf_changes(key, before[key], now[key]):
            yield f"{where} {leaf} {change}"


def _leaf_changes(key: str, before: Any, now: Any) -> Iterator[tuple[str, str]]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        if before != now:
            yield key, "changed"
        return
    for name in dict.fromkeys([*before, *now]):
        leaf = f"{key}.{name}"
        if name not in now:
            yield leaf, "removed"
        elif name not in before:
            yield leaf, "new"
        else:
            yield from _leaf_changes(leaf, before[name], now[name])
