"""Keep a run's records correct if it is killed or the machine crashes, and clean up before the next run reads them.

A run syncs its file systems before dvc.lock names what it wrote, and then notes the moment in `synced`, with the sha256
of the ledger's last line, without which the ledger is not the one that runs wrote. If a run did not end (`at-work` is
there), or the machine went down since that moment, what was written later is compared with its hash before anything
uses it, and temporary files are removed. A dvc.yaml that its stages had destroyed is restored from a copy. DVC's cache
may be shared with other users and machines: only this workspace's own files are removed there.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dvcfleet.disk import lines_from_end, read_json, sync_names, sync_then_write, write_durably
from dvcfleet.dvc_adapter.lock_entries import add_missing, is_destroyed, parse_map, restore_map
from dvcfleet.dvc_adapter.lockfiles import LockFiles, names_by_lock_file
from dvcfleet.dvc_adapter.objects import forget_hashes, is_torn, listing_at
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.run_cache import entry_at, run_cache_folder, temporary_mark
from dvcfleet.dvc_adapter.stages import stage_graph
from dvcfleet.options import Options

FOLDER = "pipeline-copies"


def read_text_file(path: Path) -> str | None:
    """Return a file's text; None if there is none, or if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def keep_copies(root: Path, state: Path, texts: Mapping[Path, str]) -> None:
    """Keep copies of files inside `root` in the state folder."""
    for path, text in texts.items():
        if path.is_relative_to(root):
            copy = state / FOLDER / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")


def forget_copies(state: Path) -> None:
    """Remove all copies."""
    shutil.rmtree(state / FOLDER, ignore_errors=True)


def restore_destroyed(root: Path, state: Path, say: Callable[[str], None]) -> None:
    """Restore a dvc.yaml that lost its stages in a killed run, with what that run's stages added; remove the copies."""
    for copy in sorted((state / FOLDER).rglob("*")):
        path, before = root / copy.relative_to(state / FOLDER), read_text_file(copy)
        if before is None:
            continue
        now = parse_map(read_text_file(path) or "")
        if is_destroyed(now, parse_map(before)):
            write_durably(path, restore_map(before, now, {}))
            lost = add_missing(now or {}, parse_map(before))
            say(f"{path.relative_to(root)} had lost {', '.join(lost)} when a run was killed: restored")
    forget_copies(state)


LEDGER = "ledger.jsonl"
SYNCED = "synced"
AT_WORK = "at-work"
_TEMPORARY = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")  # as DVC names them
_HASH = re.compile(r"\b[0-9a-f]{32}(?:\.dir)?\b")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Of how long before a sync began what was written is taken to be written later: file systems stamp with a coarse clock.
_MARGIN_S = 1.0


def sync(repo: Repo, state: Path, texts: Mapping[Path, str] | None = None) -> None:
    """Sync the repository's file systems, note that in `state`, then replace files by `texts`; may raise OSError."""
    _sync(repo, state, {os.path.dirname(out.fs_path) for out in repo.index.outs if out.protocol == "local"}, texts)


def _sync(repo: Repo, state: Path, folders: Collection[str] = (), texts: Mapping[Path, str] | None = None) -> None:
    note = json.dumps({"boot": _boot(), "moment": time.time() - _MARGIN_S, "ledger": _ledger_end(state)})
    places = {repo.root_dir, repo.scm.root_dir, repo.cache.local.path, *folders}
    sync_then_write(places, {**(texts or {}), state / SYNCED: note})


def synced_ledger_end(state: Path) -> str | None:
    """Return the sha256 of the ledger's last line at the last sync; None if there was none, or it is not known."""
    end = (read_json(state / SYNCED) or {}).get("ledger")
    return end if isinstance(end, str) else None


def _ledger_end(state: Path) -> str | None:
    """Return the sha256 of the ledger's last line; if it lacks that of the last sync, the latter."""
    before, lines = synced_ledger_end(state), lines_from_end(state / LEDGER)
    digests = (hashlib.sha256(line).hexdigest() for line in lines if line[:1] + line[-1:] == b"{}")
    with suppress(OSError):  # of a ledger that was damaged otherwise
        next(lines, None)  # what a kill or a full disk truncated
        last = next(digests, None)
        return last if before in (None, last) or before in digests else before
    return before


def is_unfinished(state: Path) -> bool:
    """Tell whether a run was killed and has not been continued, or is active."""
    return (state / AT_WORK).exists()


@contextmanager
def crash_recovery(repo: Repo, state: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Clean up after a killed run or a crash, and mark in the folder `state` that a run is active until the block ends.

    Whoever writes to DVC's state in the block calls `sync` at its end; after an exception that is done here. Only the
    holder of the repository's write lock may call this.
    """
    note, is_unsure = state / AT_WORK, is_unfinished(state)
    if is_unsure:
        restore_destroyed(Path(repo.root_dir), state, say)
        forget_index(repo)
        for path in Path(run_cache_folder(repo)).glob(f"{temporary_mark(repo)}*.tmp"):
            path.unlink(missing_ok=True)
        _remove_temporaries_beside_outputs(repo)
    boot, moment = _last_sync(state)
    if is_unsure or (boot is not None and boot != _boot()):
        _check_since(repo, state, moment)
    elif boot is None:
        _sync(repo, state)
    write_durably(note, _boot())
    sync_names(state)
    try:
        yield
    except BaseException:
        is_unsure = True
        raise
    finally:
        if is_unsure:
            _sync(repo, state)
        note.unlink(missing_ok=True)
        sync_names(state)


def recovered_lock_files(repo: Repo, state: Path) -> LockFiles:
    """Return the repository's dvc.lock files, after writing into them what a killed run had left in its journal."""
    everything = Options(all_pipelines=True)
    locks = LockFiles(
        state / "journal",
        lambda: names_by_lock_file(stage_graph(repo, everything)[1]),
        repo.scm_context.track_file,
        partial(sync, repo, state),
    )
    if locks.recover():
        forget_index(repo)
    return locks


def _last_sync(state: Path) -> tuple[str | None, float]:
    """Return the boot of the last sync (None: there was none, empty: its record is damaged), and its time (epoch)."""
    try:
        kept = json.loads((state / SYNCED).read_bytes())
        moment = float(kept["moment"])
        # In the future: the clock was set back since then, and does not tell what was written later.
        return str(kept["boot"]), moment if 0 < moment <= time.time() else 0.0
    except FileNotFoundError:
        return None, 0.0
    except (ValueError, TypeError, KeyError):
        return "", 0.0


def _remove_temporaries_beside_outputs(repo: Repo) -> None:
    """Remove DVC's temporary files next to this workspace's outputs, and inside outputs that persist."""
    folders = set()
    for out in repo.index.outs:
        if out.protocol == "local" and out.is_in_repo:
            folders.add(os.path.dirname(out.fs_path))
            folders.update(folder for folder, _, _ in os.walk(out.fs_path) if out.persist)
    for folder in filter(os.path.isdir, folders):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))


def _check_since(repo: Repo, state: Path, since: float) -> None:
    """Remove torn objects that were written to DVC's cache and run cache after `since`.

    Inputs and outputs written after it are hashed again. In a cache outside the repository, only objects that this
    workspace refers to are removed.
    """
    cache = Path(repo.cache.local.path)
    is_own = cache.is_relative_to(repo.root_dir)
    named = cache.glob("[0-9a-f][0-9a-f]/*") if is_own else _objects_named_by(repo, state, cache)
    for path in named:
        if _is_later(path, since) and is_torn(path):
            path.unlink()
    # Not temporary files, which somebody may be writing.
    for path in Path(run_cache_folder(repo)).glob("??/*/[!.]*") if is_own else ():
        if _is_later(path, since) and entry_at(path) is None:
            path.unlink()
    forget_hashes(repo, [str(path) for path in _files_of_stages(repo) if _is_later(path, since)])


def _is_later(path: Path, since: float) -> bool:
    return path.is_file() and path.stat().st_ctime >= since


def _objects_named_by(repo: Repo, state: Path, cache: Path) -> list[Path]:
    """Return the cache paths of all objects in dvc.lock, .dvc files and the journal."""
    stages = {Path(stage.path) for stage in repo.index.stages}
    sources = [state / "journal", *stages, *(path.with_suffix(".lock") for path in stages)]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources if path.is_file()]
    hashes = {digest for text in texts for digest in _HASH.findall(text)}
    for folder in [each for each in hashes if each.endswith(".dir")]:
        hashes.update((listing_at(cache / folder[:2] / folder[2:]) or {}).values())
    return [cache / each[:2] / each[2:] for each in sorted(hashes)]


def _files_of_stages(repo: Repo) -> Iterator[Path]:
    """Find the files of this workspace that stages read and write."""
    items = {item.fs_path for item in (*repo.index.deps, *repo.index.outs) if item.protocol == "local"}
    for path in items:
        if os.path.isfile(path):
            yield Path(path)
        for folder, _, names in os.walk(path):
            yield from (Path(folder, name) for name in names)


def _boot() -> str:
    """Return the id of the machine's current boot; empty if the system has none."""
    return _BOOT.read_text(encoding="utf-8").strip() if _BOOT.exists() else ""
