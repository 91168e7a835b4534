"""Export lineage to other tools, in the format that a file's suffix selects."""

from collections.abc import Callable, Iterable
from pathlib import Path

from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import look_up
from dvcfleet.lineage.steps import Lineage
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.repository import opened, root_around

KINDS = {
    ".json": "W3C PROV-JSON",
    ".jsonl": "OpenLineage events",
    ".zip": "an RO-Crate",
    "": "an RO-Crate in a folder",
}
# The bytes of a file, or what fills an empty folder; and what that is.
Export = tuple[Iterable[bytes] | Callable[[Path], None], str]


def exported(repo: Path, path: Path, target: str | None = None) -> Export:
    """Return an export by its file's or folder's name; raise UserError for an unknown suffix, or if nothing has run."""
    if path.suffix not in KINDS:
        known = ", ".join(f"{suffix} ({kind})" for suffix, kind in KINDS.items() if suffix)
        raise UserError(f"{path}: the name must end in {known}, or in nothing for an RO-Crate in a folder")
    if target:
        lineage = look_up(repo, target)[1]
    else:
        with opened(repo) as dvc_repo:
            lineage = read_lineage(dvc_repo)
    if not lineage.steps and not any(lineage.executions.values()):
        raise UserError("nothing has run yet; the next run runs it")
    return _content(path.suffix, lineage, root_around(repo)), f"{KINDS[path.suffix]} of {len(lineage.steps)} stages"


def _content(suffix: str, lineage: Lineage, root: Path) -> Iterable[bytes] | Callable[[Path], None]:
    """Write a lineage by the module of a suffix, which imports the format's library: that takes a second."""
    if suffix == ".json":
        from dvcfleet.lineage import prov

        return [prov.to_prov_json(lineage).encode()]
    if suffix == ".jsonl":
        from dvcfleet.lineage import openlineage

        return [openlineage.to_json_lines(lineage).encode()]
    from dvcfleet.lineage import rocrate

    crate = rocrate.to_crate(lineage, root)
    content: Iterable[bytes] | Callable[[Path], None] = crate.stream_zip() if suffix else crate.write
    return content
