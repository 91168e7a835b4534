"""Export lineage to other tools, in the format that a file's suffix selects."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

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


def exported(repo: Path, path: Path, target: str | None = None) -> tuple[str, str]:
    """Return the text of a file with the lineage of everything, or of one target, and a description of it.

    Raises UserError for an unknown suffix, and if nothing has run yet.
    """
    if path.suffix not in KINDS:
        known = " or ".join(f"{suffix} ({kind})" for suffix, (kind, _) in KINDS.items())
        raise UserError(f"{path}: the name must end in {known}")
    if target:
        lineage = look_up(repo, target)[1]
    else:
        with opened(repo) as dvc_repo:
            lineage = read_lineage(dvc_repo)
    if not lineage.steps:
        raise UserError("nothing has run yet; the next run runs it")
    kind, write = KINDS[path.suffix]
    return write(lineage), f"{kind} of {len(lineage.steps)} stages"
