"""Merganser's hooks in the lineage of its own repository: see `dvcfleet.lineage.hooks.LineageHooks`."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.lineage.hooks import LineageHooks
from dvcfleet.lineage.show import SHORT
from dvcfleet.lineage.steps import FetchedSource, Finding, Lineage, Target, TrackingRun
from merganser.flows.evidence.findings import compare_untrusted, steps_writing
from merganser.flows.evidence.own_code import own_code
from merganser.tasks.code import recorded_code
from merganser.tasks.code_record import Digest
from merganser.tasks.stage import code_tree
from merganser.tasks.stages import CODE, DATA, RECORDS, REPORT, SERVED

DESCRIPTION = "source.json"  # written by `fetch` next to a checkpoint or a data set


@cache
def _codes(root: Path) -> Mapping[str, Digest]:
    return {f"{CODE}/{file}": known for file, known in recorded_code(root, code_tree()).items()}


class MerganserLineage(LineageHooks):
    """The hooks of a comparison in lineage: sources, MLflow's runs and their audit, cells of the report."""

    @property
    def elsewhere(self) -> Sequence[str]:
        """Return the variable that has stages record their results in another MLflow."""
        return ("MLFLOW_TRACKING_URI",)

    def find(self, repo: Repo, text: str) -> Target | None:
        """Find an MLflow run, or a cell of the report."""
        from merganser.flows.evidence.targets import find

        return find(repo, text)

    def names(self) -> Iterable[str]:
        """List the entries of methods."""
        from merganser.flows.evidence.targets import entries

        return entries()

    def about(self, path: str, md5: str | None) -> str | None:
        """Return the class and digest of a stage's code as of the last run of the stage `code`."""
        known = _codes(Path.cwd()).get(path)
        if known is None or md5 != hashlib.md5(f"{known.of}\n".encode(), usedforsecurity=False).hexdigest():
            return None
        of = f"class {known.of[:SHORT]}, " if known.of.isalnum() else ""  # a card's text is no class
        return f"({of}digest {known.digest[:SHORT]})"

    def origin(self, path: Path) -> FetchedSource | None:
        """Read the `source.json` of a fetched checkpoint or data set."""
        content = read_json(path / DESCRIPTION)
        if not content or not _is_description(content):
            return None
        source, kind, files = (content.pop(key) for key in ("source", "kind", "files"))
        group = [f"{one['hub']}@{one['revision']}" for one in content.get("group", {}).values()]
        revision = content.pop("revision", None) or content.pop("version", None) or ", ".join(group) or None
        return FetchedSource(path.as_posix(), source, kind, revision, files, content)

    def tracking_run(self, path: Path) -> TrackingRun | None:
        """Return the MLflow run in a receipt."""
        record = read_json(path) if path.parent == RECORDS else None
        run = record.get("run_id") if record else None
        return TrackingRun("MLflow", run) if run and isinstance(run, str) else None

    def written_by_stages(self) -> Iterator[Path]:
        """List the files in the folder of stage outputs, without a running server's temporary files."""
        for path in sorted(DATA.rglob("*")):
            if path.name != ".gitignore" and not path.is_relative_to(SERVED) and (path.is_symlink() or path.is_file()):
                yield path

    def audit(self, lineage: Lineage, findings: Sequence[Finding]) -> list[Finding]:
        """Compare the report with its inputs if they are as recorded, and MLflow's records with the files.

        If the version of Merganser differs and its results too, one finding says that they could not be
        compared.
        """
        from merganser.flows.evidence.mlflow_audit import check_records
        from merganser.flows.evidence.report_audit import check_papers, check_report

        own = own_code()
        papers = list(check_papers(lineage))
        reported = []
        if not findings:
            reported = own.compared("the report", lambda: compare_untrusted(REPORT, lambda: check_report(lineage)))
        known = [*findings, *papers, *reported]
        recorded = own.compared(
            "MLflow's runs", lambda: compare_untrusted(RECORDS, lambda: check_records(lineage, known))
        )
        return papers + reported + recorded

    def audited(self, lineage: Lineage) -> list[str]:
        """Say how many MLflow runs were compared, and whether the report was."""
        entries = sum(step.tracking_run is not None for step in lineage.steps.values())
        reports = any(True for _ in steps_writing(lineage, REPORT))
        without = ", without the artifacts of MLFLOW_TRACKING_URI" if os.environ.get("MLFLOW_TRACKING_URI") else ""
        return [f"MLflow's runs of {entries} entries{without}"] * bool(entries) + [
            "the report, computed again"
        ] * reports

    def tolerance(self, path: str, content: Any, place: tuple[str, ...]) -> float | None:
        """Return how far a score may differ on another device; None for numbers derived from scores."""
        from merganser.flows.steps.devices import score_tolerance

        return score_tolerance(content, place)


def _is_description(content: Mapping[str, Any]) -> bool:
    """Tell whether a `source.json` has a source, and the sha256 of files in its folder."""
    files, group = content.get("files"), content.get("group", {})
    return (
        isinstance(files, dict)
        and isinstance(group, dict)
        and {"source", "kind"} <= content.keys()
        and all(isinstance(content.get(word), str | None) for word in ("source", "kind", "revision", "version"))
        and all(isinstance(file, dict) and isinstance(file.get("sha256"), str) for file in files.values())
        and not any({"", ".", ".."} & {*name.split("/")} for name in files)
        and all(isinstance(one, dict) and {"hub", "revision"} <= one.keys() for one in group.values())
    )
