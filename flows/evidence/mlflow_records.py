"""What MLflow holds of a comparison, read once: its runs, and what receipts and files say of them.

Imports MLflow and torch, so import it late.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from dvcfleet.disk import read_json
from dvcfleet.lineage.steps import Lineage
from merganser.config.params import Params
from merganser.hashes import sha256_of_tree
from merganser.report.scores import Scores, read_scores
from merganser.tasks.record import Store
from merganser.tasks.recorded import COMPARISON, ENTRY, REPORTED, Held, entry_run
from merganser.tasks.stages import MERGE_PROFILES, METRICS, REPORT, UNSEEN

_MOST_BYTES = 10_000  # of a receipt


@dataclass(frozen=True)
class Records:
    """A store, and receipts by their stages; `report` is the stage whose report is compared, if it is."""

    store: Store
    params: Params
    lineage: Lineage
    receipts: Mapping[str, Path]
    report: str | None

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]]:
        """The receipts, by entry."""
        return {file.stem: read_json(file) or {} for file in self.receipts.values()}

    @cached_property
    def _held(self) -> dict[str, Held]:
        return {entry: entry_run(self.params, entry) for entry in self._noted}

    @cached_property
    def _runs(self) -> list[Run]:
        """All runs that are not deleted."""
        found, page = list[Run](), None
        while page is None or page:
            runs = self.store.client.search_runs([self.store.experiment], page_token=page)
            page = runs.token or ""
            found += runs
        return found

    @cached_property
    def _parents(self) -> list[Run]:
        return [run for run in self._runs if run.data.tags.get(COMPARISON)]

    @cached_property
    def _scores(self) -> dict[str, Scores]:
        """Of all entries: read where the report is compared, whose inputs are then as recorded."""
        return read_scores(self.params, METRICS, MERGE_PROFILES, UNSEEN)

    @cached_property
    def _digest(self) -> str:
        return sha256_of_tree(REPORT) if REPORT.is_dir() else ""

    @cached_property
    def _location(self) -> str:
        return str(self.store.client.get_experiment(self.store.experiment).artifact_location)

    def _parents_of(self, run: Run, entry: str) -> list[Run]:
        return [each for each in self._parents if each.data.tags.get(f"{ENTRY}.{entry}") == run.info.run_id]

    def _logged(self, run: Run, name: str) -> set[tuple[int, float]]:
        """Return all steps and values of a metric, with the one that MLflow shows."""
        history = self.store.client.get_metric_history(run.info.run_id, name)
        logged = {(metric.step, metric.value) for metric in history}
        last = max((metric.step for metric in history), default=0)
        return logged | ({(last, run.data.metrics[name])} if name in run.data.metrics else set())

    def _run(self, run_id: str) -> Run | None:
        try:
            return self.store.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def _is_here(self, parent: str | None, entry: str) -> bool:
        """Tell whether a comparison's run is the one that an entry was recorded in, or has the report that is here."""
        of_report = [each.info.run_id for each in self._parents if each.data.tags.get(REPORTED) == self._digest]
        return parent is not None and parent in (self._noted[entry].get("parent_run_id"), *of_report)

    def _earlier_receipts(self) -> set[str]:
        """Return the runs that receipts in DVC's cache name: of a run that was continued with other parameters, too."""
        found = set()
        for stage in self.receipts:
            for out in self.lineage.stages[stage].outs:
                for path in Path(out.cache.path).glob("??/" + "?" * 30):
                    if path.stat().st_size < _MOST_BYTES and (receipt := read_json(path)):
                        found.add(str(receipt.get("run_id")))
            break
        return found


def is_elsewhere() -> bool:
    """Tell whether MLflow is elsewhere, where its artifacts are not compared."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI"))
