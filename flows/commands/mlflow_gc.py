"""Find MLflow runs that no kept result names, in the store's file; MLflow, which is imported late, deletes them."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from dvcfleet.disk import vacuum
from dvcfleet.errors import FailedError
from merganser.flows.evidence.lost_evidence import local_folder
from merganser.tasks.identity import experiment_names
from merganser.tasks.recorded import COMPARISON, ENTRY, PARENT
from merganser.tasks.tracking import STORE, follow_artifacts, store_words

_AT_ONCE = 200  # runs of a call of `mlflow gc`, whose arguments have a limit


@dataclass(frozen=True)
class OldRuns:
    """MLflow runs to delete: their ids, the folders of their artifacts, and their share of all runs."""

    store: Path
    ids: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    part: float = 0.0

    @property
    def size(self) -> int:
        """Return about how many bytes they take: artifacts and their share of the database."""
        database = self.store.stat().st_size if self.ids else 0
        return round(self.part * database) + sum(map(folder_size, self.folders))


def store_here() -> Path | None:
    """Return the store's file of a Merganser project's folder; None if it is a server, a trial's link, or missing."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE}"
    path = Path(uri.removeprefix("sqlite:///"))
    if path == STORE:  # a copy's store may still name the artifacts of the comparison that was copied
        follow_artifacts(Path())
    return path if uri.startswith("sqlite:///") and path.is_file() and not path.is_symlink() else None


def old_runs(store: Path, since: datetime, needed: Collection[str]) -> OldRuns:
    """Find runs that ended before a time and are no longer needed; raise FailedError if the store cannot be read.

    `needed`: ids of runs, or names of comparisons. A comparison that stays keeps the runs of its entries, and an
    entry's run keeps the comparison that it was recorded in.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(store))}?mode=ro", uri=True)) as connection:
            return _found(connection, store, since, needed)
    except sqlite3.Error as error:
        raise FailedError(store_words(error)) from error


def _found(connection: sqlite3.Connection, store: Path, since: datetime, needed: Collection[str]) -> OldRuns:
    # Of this comparison's experiment, and of what was deleted there but not yet for good.
    names = experiment_names(Path())
    listed = connection.execute(
        "SELECT run_uuid, COALESCE(end_time, start_time), artifact_uri FROM runs WHERE experiment_id IN"
        f" (SELECT experiment_id FROM experiments WHERE name IN ({', '.join('?' * len(names))}))",
        names,
    ).fetchall()
    tags = connection.execute("SELECT run_uuid, key, value FROM tags").fetchall()
    moment = since.timestamp() * 1000
    stay = {run for run, ended, _ in listed if ended >= moment or run in needed}
    stay |= {run for run, key, value in tags if key == COMPARISON and value in needed}
    stay |= {value for run, key, value in tags if run in stay and key.startswith(f"{ENTRY}.")}
    stay |= {value for run, key, value in tags if run in stay and key == PARENT}
    old = [(run, local_folder(place)) for run, _, place in listed if run not in stay]
    folders = tuple(folder.parent for _, folder in old if folder and folder.parent.is_dir())
    return OldRuns(store, tuple(run for run, _ in old), folders, len(old) / max(len(listed), 1))


def folder_size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def delete_runs(runs: OldRuns) -> None:
    """Delete runs with their artifacts and the models that they logged, by `mlflow gc`; raise FailedError."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = f"sqlite:///{runs.store.absolute()}"
    client = MlflowClient(uri)
    try:
        for start in range(0, len(runs.ids), _AT_ONCE):
            some = runs.ids[start : start + _AT_ONCE]
            models = list(_models(runs.store, some))
            for model in models:
                client.delete_logged_model(model)
            for run in some:
                client.delete_run(run)
            _collect(uri, some, models)
    except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        raise FailedError(store_words(error)) from error
    vacuum(runs.store)
    for folder in runs.folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _models(store: Path, runs: Sequence[str]) -> Iterator[str]:
    which = ", ".join("?" * len(runs))
    with closing(sqlite3.connect(f"file:{quote(str(store))}?mode=ro", uri=True)) as connection:
        query = f"SELECT model_id FROM logged_models WHERE source_run_id IN ({which})"
        yield from (model for (model,) in connection.execute(query, list(runs)).fetchall())


def _collect(uri: str, runs: Sequence[str], models: Sequence[str]) -> None:
    """Have MLflow delete the marked runs and models for good."""
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri, "--tracking-uri", uri]
    command += ["--run-ids", ",".join(runs), *(("--logged-model-ids", ",".join(models)) if models else ())]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FailedError(f"`mlflow gc` did not remove old runs ({reason}); they are among MLflow's deleted runs")
