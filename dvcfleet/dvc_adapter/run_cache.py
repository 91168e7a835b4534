"""DVC's run cache: one file for each combination of a command, its inputs and the outputs they gave.

An entry is a stage's entry in dvc.lock. Its path is `runs/KEY[:2]/KEY/HASH`: HASH is the SHA-256 of the entry as JSON
without sizes, KEY that of the entry with only the paths of its outputs.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.internals import otherwise
from dvcfleet.dvc_adapter.lock_entries import write_yaml
from dvcfleet.dvc_adapter.stages import lock_entry_of, may_restore
from dvcfleet.dvc_adapter.storing import save_inputs

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage


def entry_hash(entry: dict[str, Any]) -> str:
    """Return the name of an entry's file; raise ValueError for a parameter that JSON cannot hold, such as a date."""
    try:
        text = json.dumps(_without_sizes(entry), sort_keys=True)
    except TypeError as error:  # which would say that DVC has other internals
        raise ValueError(str(error)) from error
    return hashlib.sha256(text.encode()).hexdigest()


def run_key(entry: dict[str, Any]) -> str:
    """Return the name of the folder that holds all entries with this command and these inputs."""
    return entry_hash(entry | {"outs": [out["path"] for out in entry.get("outs", [])]})


def parse_entry(text: str, path: str) -> dict[str, Any] | None:
    """Parse a file of a run cache; return None if it is damaged."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils.serialize import YAMLError, parse_yaml
    from voluptuous import Invalid

    try:
        return dict(COMPILED_LOCK_FILE_STAGE_SCHEMA(parse_yaml(text, path)))
    except (YAMLError, Invalid):
        return None


@otherwise("run_cache", lambda repo: os.path.join(repo.cache.legacy.path, "runs"))
def run_cache_folder(repo: "Repo") -> str:
    """Return the folder of all entries."""
    return str(repo.stage_cache.cache_dir)


def temporary_mark(repo: "Repo") -> str:
    """Return the prefix of this workspace's temporary files in a run cache that others may share."""
    return f".dvcfleet-{hashlib.sha256(f'{platform.node()}:{repo.root_dir}'.encode()).hexdigest()[:16]}-"


def in_run_cache(stage: "Stage") -> bool:
    """Tell whether the run cache holds the outputs for the stage's present command and inputs.

    Raises what DVC raises for inputs that it cannot read or keep.
    """
    from dvc.stage.cache import RunCacheNotFoundError

    if not may_restore(stage):
        return False
    with _as_if_new(stage):
        try:
            save_inputs(stage, allow_missing=True)
            if not _may_have_run(stage):
                return False
            stage.repo.stage_cache.restore(stage, dry=True)
        except RunCacheNotFoundError:
            return False
        except (TypeError, KeyError):
            # DVC fails on a folder without an entry, and on a half-written one of another user of the cache.
            return False
    return True


def save_run(stage: "Stage", entry: dict[str, Any]) -> None:
    """Save a stage's entry of dvc.lock to the run cache."""
    if all(out.use_cache for out in stage.outs):
        _write_entry(stage, entry)
    else:
        stage.repo.stage_cache.save(stage)


@otherwise("run_cache", lambda stage, entry: stage.repo.stage_cache.save(stage))
def _write_entry(stage: "Stage", entry: dict[str, Any]) -> None:
    if not _fits(stage):
        return
    cache = stage.repo.cache.legacy
    folder = _folder(stage, entry)
    path = os.path.join(folder, entry_hash(entry))
    if os.path.exists(path):
        return
    cache.makedirs(folder)
    # Not in that folder: another user of a shared cache would take it for the newest entry.
    temporary = os.path.join(run_cache_folder(stage.repo), f"{temporary_mark(stage.repo)}{os.getpid()}.tmp")
    write_yaml(temporary, entry)
    cache.move(temporary, path)


@otherwise("run_cache", lambda stage: True)
def _may_have_run(stage: "Stage") -> bool:
    """Tell whether the run cache has a folder for a stage's command and inputs: a fast test before DVC's own."""
    return _fits(stage) and os.path.isdir(_folder(stage, lock_entry_of(stage)))


def _folder(stage: "Stage", entry: dict[str, Any]) -> str:
    key = run_key(entry)
    return os.path.join(run_cache_folder(stage.repo), key[:2], key)


def _fits(stage: "Stage") -> bool:
    """Tell whether DVC can and may keep the stage in its run cache."""
    if (
        not may_restore(stage)
        or stage.is_callback
        or stage.always_changed
        or not (stage.cmd and stage.deps and stage.outs)
    ):
        return False
    return all(dep.protocol == "local" and dep.def_path and dep.hash_info for dep in stage.deps) and all(
        out.protocol == "local" and out.def_path and not out.persist and out.is_in_repo for out in stage.outs
    )


def _without_sizes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_sizes(item) for key, item in value.items() if key not in ("size", "nfiles")}
    return [_without_sizes(item) for item in value] if isinstance(value, list) else value


@contextmanager
def _as_if_new(stage: "Stage") -> Iterator[None]:
    """Hide the stage's dvc.lock entry from DVC, which would otherwise take its outputs as valid for any inputs."""
    from dvc_data.hashfile.hash_info import HashInfo

    fields = ("hash_info", "meta", "hash_name", "files")
    items = (*stage.deps, *stage.outs)
    locked = [(item, {name: vars(item)[name] for name in fields if name in vars(item)}) for item in items]
    try:
        for out in stage.outs:
            out.hash_info = HashInfo()
        yield
    finally:
        for item, values in locked:
            vars(item).update(values)
