"""Open or create the MLflow store of a comparison."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from merganser.tasks.identity import experiment_names
from merganser.tasks.tracking import ARTIFACTS, STORE, comparison_folder, follow_artifacts

if TYPE_CHECKING:
    from mlflow import MlflowClient

KIND = {"mlflow.experimentKind": "custom_model_development"}  # which pages MLflow shows: of models, not of prompts


@dataclass(frozen=True)
class Store:
    """An MLflow store and this project's experiment in it."""

    client: "MlflowClient"
    experiment: str

    def find(self, tag: str, value: str, status: str = "FINISHED") -> str | None:
        """Return the id of the first run with this tag and status; None if there is none."""
        wanted = f"tags.`{tag}` = '{value}' and attributes.status = '{status}'"
        runs = self.client.search_runs([self.experiment], wanted, order_by=["attributes.start_time ASC"], max_results=1)
        return runs[0].info.run_id if runs else None

    def begin(self, tag: str, value: str, name: str, tags: Mapping[str, str]) -> str:
        """Return a run with a tag to fill: one that a kill left unfinished, else a new one."""
        return self.find(tag, value, "RUNNING") or str(
            self.client.create_run(self.experiment, tags={tag: value, **tags}, run_name=name).info.run_id
        )


def open_store() -> Store:
    """Open the store of MLFLOW_TRACKING_URI, by default a SQLite file here; create what is missing."""
    from mlflow import MlflowClient

    uri, folder = os.environ.get("MLFLOW_TRACKING_URI"), comparison_folder()
    store = folder / STORE
    if not uri and not store.exists():
        _make_store(store)
    elif not uri:
        follow_artifacts(folder)
    # Absolute: MLflow keeps one connection a URI, and a long-lived worker may serve more than one repository.
    client = MlflowClient(uri or f"sqlite:///{store.absolute()}")
    if known := experiment_in(client):
        return Store(client, known)
    location = None if uri else (folder / ARTIFACTS).absolute().as_uri()
    name = experiment_names(folder)[0]
    return Store(client, client.create_experiment(name, artifact_location=location, tags=KIND))


def experiment_in(client: "MlflowClient") -> str | None:
    """Return the id of the comparison's experiment in a store; None if there is none."""
    known = (client.get_experiment_by_name(name) for name in experiment_names(comparison_folder()))
    return next((str(each.experiment_id) for each in known if each), None)


def _make_store(store: Path) -> None:
    """Create the file under another name first: MLflow cannot continue if a kill leaves its tables half made.

    MLflow writes the default experiment by SQL without escapes, so the artifacts' place is given as a URI, which has
    no quotes.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for old in store.parent.glob(f"{store.name}.*.draft*"):
        old.unlink()
    draft = store.with_name(f"{store.name}.{os.getpid()}.draft")
    SqlAlchemyStore(f"sqlite:///{draft.absolute()}", store.with_name(ARTIFACTS.name).absolute().as_uri())
    with closing(sqlite3.connect(draft)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    draft.rename(store)
