"""Merganser's hooks in the lineage of its own repository: see `dvcfleet.lineage.hooks.LineageHooks`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import merganser
import tasks
from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.lineage.findings import Finding
from dvcfleet.lineage.hooks import LineageHooks
from dvcfleet.lineage.steps import Lineage, Origin, Target, TrackingRun
from flows.untrusted import compared, is_description
from tasks.stages import RECORDS, REPORT

DESCRIPTION = "source.json"  # written by `fetch` next to a checkpoint or a data set


class MerganserLineage(LineageHooks):
    """The hooks of a comparison in lineage: sources, MLflow's runs and their audit, cells of the report."""

    @property
    def elsewhere(self) -> Sequence[str]:
        """Name the variable by which stages record their results in another MLflow."""
        return ("MLFLOW_TRACKING_URI",)

    def find(self, repo: Repo, text: str) -> Target | None:
        """Find an MLflow run, or a cell of the report."""
        from flows.targets import find

        return find(repo, text)

    def names(self) -> Iterable[str]:
        """List the entries of methods."""
        from flows.targets import entries

        return entries()

    def origin(self, path: Path) -> Origin | None:
        """Read the `source.json` of a fetched checkpoint or data set."""
        content = read_json(path / DESCRIPTION)
        if not content or not is_description(content):
            return None
        source, kind, files = (content.pop(key) for key in ("source", "kind", "files"))
        group = [f"{one['hub']}@{one['revision']}" for one in content.get("group", {}).values()]
        revision = content.pop("revision", None) or content.pop("version", None) or ", ".join(group) or None
        return Origin(path.as_posix(), source, kind, revision, files, content)

    def tracking_run(self, path: Path) -> TrackingRun | None:
        """Return the MLflow run that a receipt names."""
        found = read_json(path) if path.parent == RECORDS else None
        run = found.get("run_id") if found else None
        return TrackingRun("MLflow", run) if run and isinstance(run, str) else None

    def audit(self, lineage: Lineage, found: Sequence[Finding]) -> list[Finding]:
        """Compare the report with its inputs if these are as recorded, and what MLflow holds with the files.

        Nothing is compared where the repository has another version of the code that says what these are to be.
        """
        from flows.mlflow_audit import check_records
        from flows.report_audit import check_report

        if not _is_own_code():
            return []
        reported = [] if found else compared(REPORT, lambda: check_report(lineage))
        return reported + compared(RECORDS, lambda: check_records(lineage, [*found, *reported]))

    def audited(self, lineage: Lineage) -> list[str]:
        """Say how many runs of MLflow are compared, and whether the report is."""
        if not _is_own_code():
            return ["neither the report nor MLflow, which another version of Merganser wrote: its commit has that"]
        entries = sum(step.tracking_run is not None for step in lineage.steps.values())
        reports = any(item.path == str(REPORT) for step in lineage.steps.values() for item in step.outputs)
        return [f"MLflow's runs of {entries} entries"] * bool(entries) + ["the report, computed again"] * reports

    def tolerance(self, path: str, content: Any, place: tuple[str, ...]) -> float | None:
        """Return how far a score may move on another device; None for what follows from scores."""
        from flows.devices import score_tolerance

        return score_tolerance(content, place)


def _is_own_code() -> bool:
    """Tell whether the repository in whose folder this is has this process's code, as an archive of another may not."""
    for package in (merganser, tasks):
        own = Path(str(package.__file__)).parent
        here = Path(own.name)
        if here.is_dir() and here.samefile(own):
            continue
        names = [{path.relative_to(folder) for path in _code(folder)} for folder in (own, here)]
        if names[0] != names[1] or any((own / name).read_bytes() != (here / name).read_bytes() for name in names[0]):
            return False
    return True


def _code(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
