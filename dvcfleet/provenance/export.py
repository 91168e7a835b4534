"""Export lineage to other tools, in the format that the file's suffix selects."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dvcfleet.errors import UserError
from dvcfleet.provenance.audit import look_up
from dvcfleet.provenance.openlineage import openlineage_lines
from dvcfleet.provenance.prov import prov_json
from dvcfleet.provenance.tree import Lineage, read_lineage
from dvcfleet.repository import opened

# Each suffix's format and its writer.
KINDS: dict[str, tuple[str, Callable[[Lineage], str]]] = {
    ".json": ("W3C PROV-JSON", prov_json),
    ".jsonl": ("OpenLineage events", lambda lineage: openlineage_lines(lineage, datetime.now(UTC).isoformat())),
}


def export(repo: Path, path: Path, target: str | None = None) -> str:
    """Write the lineage of everything, or of one target, to a new file, atomically; return a description of it.

    Raises UserError for an unknown suffix, for a file that already exists, and if nothing has run yet.
    """
    _check(path)
    lineage = _read(repo, target)
    if not lineage.steps:
        raise UserError("nothing has run yet; the next run runs it")
    kind, write = KINDS[path.suffix]
    text = write(lineage)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return f"{kind} of {len(lineage.steps)} stages"


def _check(path: Path) -> None:
    if path.suffix not in KINDS:
        known = " or ".join(f"{suffix} ({kind})" for suffix, (kind, _) in KINDS.items())
        raise UserError(f"{path}: the name must end in {known}")
    if path.exists():
        raise UserError(f"{path}: exists already; name a new file, or remove it first")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it first")


def _read(repo: Path, target: str | None) -> Lineage:
    if target:
        return look_up(repo, target)[1]
    with opened(repo) as dvc_repo:
        return read_lineage(dvc_repo)
