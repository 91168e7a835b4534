"""Export lineage to other tools, in the format that a file's suffix selects."""

from importlib import import_module
from pathlib import Path

from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import look_up
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.repository import opened

# Each suffix's format, and the module here that writes it; it imports the format's library, which takes a second.
KINDS = {".json": ("W3C PROV-JSON", "prov"), ".jsonl": ("OpenLineage events", "openlineage")}


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
    kind, module = KINDS[path.suffix]
    return import_module(f"dvcfleet.lineage.{module}").write(lineage), f"{kind} of {len(lineage.steps)} stages"
