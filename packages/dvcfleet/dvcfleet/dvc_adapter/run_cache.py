"""DVC's run cache: one file for each combination of a command, its inputs and the outputs they gave.

An entry is a stage's entry in dvc.lock. Its path is `runs/KEY[:2]/KEY/HASH`: HASH is the SHA-256 of the entry as JSON
without sizes, KEY that of the entry with only the paths of its outputs.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.internals import otherwise
from dvcfleet.dvc_adapter.lock_entries import yaml_text
from dvcfleet.dvc_adapter.objects import DVC_2, has_whole, is_whole
from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.dvc_adapter.stages import lock_entry_of, may_restore
from dvcfleet.dvc_adapter.storing import make_room, save_inputs


def entry_hash(entry: dict[str, Any]) -> str:
    """Return the name of an entry's file; raise ValueError for a parameter that JSON cannot store, such as a date."""
    try:
        text = json.dumps(without_sizes(entry), sort_keys=True)
    except TypeError as error:  # which would say that DVC has other internals
        raise ValueError(str(error)) from error
    return hashlib.sha256(text.encode()).hexdigest()


def run_key(entry: dict[str, Any]) -> str:
    """Return the name of the folder that holds all entries with this command and these inputs."""
    return entry_hash(entry | {"outs": [out["path"] for out in entry.get("outs", [])]})


def parse_entry(text: str, path: str) -> dict[str, Any] | None:
    """Parse a file of a run cache; return None if it is damaged.

    YAML writes U+0085 unchanged, with the next line's indentation, but reads it as a space; here it is restored.
    """
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils.serialize import YAMLError, parse_yaml
    from voluptuous import Invalid

    stand_in = next(char for char in map(chr, range(0xE000, 0xF900)) if char not in text)  # for private use
    try:
        entry = parse_yaml(re.sub("\x85 *", stand_in, text), path)
        return dict(COMPILED_LOCK_FILE_STAGE_SCHEMA(_replaced(entry, stand_in, "\x85") if "\x85" in text else entry))
    except (YAMLError, Invalid):
        return None


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {_replaced(key, old, new): _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


@otherwise("using the run cache", lambda repo: os.path.join(repo.cache.legacy.path, "runs"))
def run_cache_folder(repo: Repo) -> str:
    """Return the folder of all entries."""
    return str(repo.stage_cache.cache_dir)


def temporary_mark(repo: Repo) -> str:
    """Return the prefix of this workspace's temporary files in a run cache that others may share."""
    return f".dvcfleet-{hashlib.sha256(f'{platform.node()}:{repo.root_dir}'.encode()).hexdigest()[:16]}-"


def in_run_cache(stage: Stage) -> bool:
    """Tell whether the run cache has the outputs for a stage's command and inputs; raise DVC's errors about inputs."""
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


def may_check_out(stage: Stage) -> bool:
    """Tell whether a stage's outputs in dvc.lock may and can replace those in the workspace.

    This includes metrics and plots that DVC's cache only has for its run cache. It must not be done if DVC would
    run the command because of an edited output, as for one that persists, or accept the edit, as for a frozen
    stage.
    """
    if not (stage.cmd and not stage.frozen and _fits(stage)) and any(
        out.exists and out.changed_checksum() for out in stage.outs
    ):
        return False
    if stage.outs_cached() and all(is_whole(out) for out in stage.outs if out.use_cache):
        return True
    return _fits(stage) and all(_is_stored(stage.repo, out) for out in lock_entry_of(stage).get("outs", ()))


def check_out(stage: Stage) -> None:
    """Restore a stage's recorded outputs, replacing those in the workspace."""
    if any(not out.use_cache and out.changed() for out in stage.outs):
        for out in stage.outs:
            out.remove(ignore_remove=False)
        stage.repo.stage_cache.restore(stage)
    else:
        stage.checkout(force=True)


def save_sizes_of_dvc_2(stage: Stage) -> None:
    """Save the sizes of files whose hashes ignore line ends, after a checkout, as DVC does."""
    for item in (*stage.deps, *stage.outs):
        if item.hash_name == DVC_2 and item.exists:
            item.save()


def pull_run(stage: Stage, run_cache: bool) -> bool:
    """Restore a stage's outputs, pulled if the cache lacks them; tell whether they are known.

    Without `run_cache`, only the outputs in dvc.lock for the current inputs are known.
    """
    from dvc.stage.cache import RunCacheNotFoundError

    if not may_restore(stage):
        return False
    try:
        stage.repo.stage_cache.restore(stage, run_cache=run_cache, pull=True)
    except RunCacheNotFoundError:
        return False
    return True


def save_run(stage: Stage, entry: dict[str, Any]) -> None:
    """Save a stage's entry of dvc.lock to the run cache."""
    if all(out.use_cache for out in stage.outs):
        _write_entry(stage, entry)
    else:
        _remove_damaged_entry(stage, entry)
        for out in stage.outs:
            if not out.use_cache:
                make_room(out)
        stage.repo.stage_cache.save(stage)


@otherwise("using the run cache", lambda stage, entry: None)
def _remove_damaged_entry(stage: Stage, entry: dict[str, Any]) -> None:
    path = Path(_folder(stage, entry), entry_hash(entry))
    if path.exists() and entry_at(path) is None:
        path.unlink()


@otherwise("using the run cache", lambda stage, entry: stage.repo.stage_cache.save(stage))
def _write_entry(stage: Stage, entry: dict[str, Any]) -> None:
    if not _fits(stage):
        return
    cache = stage.repo.cache.legacy
    folder, text = _folder(stage, entry), yaml_text(entry)
    path = Path(folder, entry_hash(entry))
    if path.exists() and path.read_bytes() == text.encode():
        return
    cache.makedirs(folder)
    # Not in that folder: another user of a shared cache would take it for the newest entry.
    temporary = os.path.join(run_cache_folder(stage.repo), f"{temporary_mark(stage.repo)}{os.getpid()}.tmp")
    Path(temporary).write_text(text, encoding="utf-8")
    cache.move(temporary, str(path))


@otherwise("using the run cache", lambda stage: True)
def _may_have_run(stage: Stage) -> bool:
    """Tell whether the run cache has an intact entry with intact outputs for a stage's command and inputs.

    This fast test precedes DVC's own, which takes the newest entry and does not check objects' content.
    """
    if not _fits(stage):
        return False
    known = lock_entry_of(stage)
    folder = Path(_folder(stage, known))
    newest = max(folder.iterdir(), key=os.path.getmtime, default=None) if folder.is_dir() else None
    entry = entry_at(newest) if newest else None
    return entry is not None and all(_is_stored(stage.repo, out) for out in entry.get("outs", ()))


def _is_stored(repo: Repo, out: dict[str, Any]) -> bool:
    return "md5" in out and has_whole(_cache_of(repo, out), out["md5"], out.get("size"))


def entry_at(path: Path) -> dict[str, Any] | None:
    """Read a file of a run cache; return None if its content differs from its name."""
    return named_entry(path.read_text(encoding="utf-8", errors="replace"), str(path))


def named_entry(text: str, path: str) -> dict[str, Any] | None:
    """Parse a file of a run cache; return None if its content differs from its name."""
    entry = parse_entry(text, path)
    try:
        return entry if entry is not None and entry_hash(entry) == os.path.basename(path) else None
    except ValueError:  # a value that no entry has, such as a date
        return None


def entry_files(repo: Repo) -> list[Path]:
    """List the files of the run cache."""
    return sorted(_files_in(Path(run_cache_folder(repo)), "*/*/*"))


def has_runs(repo: Repo) -> bool:
    """Tell whether the run cache has any entry; a clone or a restored archive has none."""
    return any(True for _ in _files_in(Path(run_cache_folder(repo)), "*/*/*"))


def runs_like(stage: Stage, entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the run cache's entries with this one's command, inputs and output paths."""
    entries = (entry_at(path) for path in _files_in(Path(_folder(stage, entry)), "*"))
    return [each for each in entries if each is not None]


def read_entries(files: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Read the valid entries among files of the run cache; a crash may leave others, which restore nothing."""
    for path in files:
        with suppress(OSError):
            if (entry := parse_entry(path.read_text(encoding="utf-8", errors="replace"), str(path))) is not None:
                yield path, entry


def edited_entries(repo: Repo, entries: Iterable[tuple[Path, dict[str, Any]]]) -> Iterator[Path]:
    """List files of the run cache whose entry differs from their name."""
    return (path for path, entry in entries if not _is_as_named(repo, entry, path))


def _files_in(folder: Path, pattern: str) -> Iterator[Path]:
    return (path for path in folder.glob(pattern) if path.is_file())


def _is_as_named(repo: Repo, entry: dict[str, Any], path: Path) -> bool:
    try:
        named = (run_key(entry), entry_hash(entry)) == path.parts[-2:]
    except ValueError:
        return False
    # An entry's size is no part of its name: one that the cache contradicts was edited.
    known = [out for out in entry.get("outs", ()) if "md5" in out and has_whole(_cache_of(repo, out), out["md5"], None)]
    return named and all(_is_stored(repo, out) for out in known)


def _cache_of(repo: Repo, out: dict[str, Any]) -> Any:
    is_legacy = "hash" not in out  # of DVC 2
    return repo.cache.legacy if is_legacy else repo.cache.local


def _folder(stage: Stage, entry: dict[str, Any]) -> str:
    key = run_key(entry)
    return os.path.join(run_cache_folder(stage.repo), key[:2], key)


def may_keep(stage: Stage) -> bool:
    """Tell whether a run cache may have the stage: it has a command and inputs, and does not always run."""
    runs_each_time = stage.is_callback or stage.always_changed
    return may_restore(stage) and not runs_each_time and bool(stage.cmd and stage.deps and stage.outs)


def keeps_runs(stage: Stage) -> bool:
    """Tell whether the run cache gets the stage's outputs after each run, by DVC or by this engine."""
    return _fits(stage) and all(out.use_cache or out.is_metric or out.is_plot for out in stage.outs)


def _fits(stage: Stage) -> bool:
    """Tell whether DVC can and may store the stage in its run cache."""
    if not may_keep(stage):
        return False
    return all(dep.protocol == "local" and dep.def_path and dep.hash_info for dep in stage.deps) and all(
        out.protocol == "local" and out.def_path and not out.persist and out.is_in_repo for out in stage.outs
    )


def without_sizes(value: Any) -> Any:
    """Return an entry without the values that its file's name does not depend on."""
    if isinstance(value, dict):
        return {key: without_sizes(item) for key, item in value.items() if key not in ("size", "nfiles")}
    return [without_sizes(item) for item in value] if isinstance(value, list) else value


@contextmanager
def _as_if_new(stage: Stage) -> Iterator[None]:
    """Hide the stage's dvc.lock entry from DVC, which would otherwise take its outputs as valid for any inputs."""
    from dvc_data.hashfile.hash_info import HashInfo

    fields = ("hash_info", "meta", "hash_name", "files")
    items = (*stage.deps, *stage.outs)
    locked = [(item, {name: vars(item)[name] for name in fields if name in vars(item)}) for item in items]
    try:
        for out in stage.outs:
            vars(out)["hash_info"] = HashInfo()
        yield
    finally:
        for item, values in locked:
            vars(item).update(values)
