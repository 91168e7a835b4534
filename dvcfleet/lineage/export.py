"""Export lineage to other tools, in the format that the file's suffix selects."""

import fcntl
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dvcfleet.disk import sync_names
from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import look_up
from dvcfleet.lineage.openlineage import openlineage_lines
from dvcfleet.lineage.prov import prov_json
from dvcfleet.lineage.steps import Lineage
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.repository import opened

# Each suffix's format and its writer.
KINDS: dict[str, tuple[str, Callable[[Lineage], str]]] = {
    ".json": ("W3C PROV-JSON", prov_json),
    ".jsonl": ("OpenLineage events", lambda lineage: openlineage_lines(lineage, datetime.now(UTC).isoformat())),
}


def export(repo: Path, path: Path, target: str | None = None) -> str:
    """Write the lineage of everything, or of one target, to a new file, atomically; return a description of it.

    Raises UserError for an unknown suffix, for a file that already exists or that another process is writing, and if
    nothing has run yet.
    """
    _check(path)
    if target:
        lineage = look_up(repo, target)[1]
    else:
        with opened(repo) as dvc_repo:
            lineage = read_lineage(dvc_repo)
    if not lineage.steps:
        raise UserError("nothing has run yet; the next run runs it")
    kind, write = KINDS[path.suffix]
    _write_new(path, write(lineage))
    return f"{kind} of {len(lineage.steps)} stages"


def _check(path: Path) -> None:
    if path.suffix not in KINDS:
        known = " or ".join(f"{suffix} ({kind})" for suffix, (kind, _) in KINDS.items())
        raise UserError(f"{path}: the name must end in {known}")
    _refuse_existing(path)
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it first")


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UserError(f"{path}: exists already; name a new file, or remove it first")


def _write_new(path: Path, text: str) -> None:
    """Write a file that is on the disk when it has its name, and is of one process, whichever others write there."""
    # The lock too, which a kill releases; the next one writes over it.
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = partial.exists() and os.path.samestat(os.fstat(file.fileno()), partial.stat())
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise UserError(f"{path}: another process is writing it; wait until it ends, or name another file")
        try:
            _refuse_existing(path)
            file.truncate(0)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink()
            raise
    sync_names(path.parent)
