"""Where MLflow's store is, and what its errors mean; MLflow itself is imported by `merganser.tasks.store`."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from merganser.tasks.identity import experiment_names
from merganser.terminal.secrets import masked

PLACES = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))
STORE, ARTIFACTS = Path("mlflow.db"), Path("mlartifacts")
# What SQLite, and MLflow of its tables, say of a file that is no longer theirs.
_DAMAGE = (
    "malformed",
    "not a database",
    "no such table",
    "no such column",
    "unsupported file format",
    "t locate revision",
)


def comparison_folder() -> Path:
    """Return the folder that has the comparison's MLflow store: this one.

    DVC runs a queued experiment in a copy of the workspace below `.dvc/tmp/exps`, which has none: its store is the
    comparison's.
    """
    copies = (folder for folder in Path.cwd().parents if folder.parts[-3:] == (".dvc", "tmp", "exps"))
    return next((folder.parents[2] for folder in copies), Path())


def follow_artifacts(root: Path) -> None:
    """Have MLflow find the artifacts of a folder that was moved or copied: its store has their absolute place.

    Nothing is changed while they are where the store says, or where the store is not of this form. A copy's are its
    own, although those that it was copied from are still where its store says.
    """
    store, here = (root / STORE).resolve(), (root / ARTIFACTS).absolute()
    if not store.is_file() or not here.is_dir() or here.is_symlink():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(store)) as connection, connection:
        names = experiment_names(root)
        which = f"name IN ({', '.join('?' * len(names))})"
        row = connection.execute(f"SELECT artifact_location FROM experiments WHERE {which}", names).fetchone()
        old = str(row[0]) if row and row[0] else ""
        if not old.startswith("file://") or _is_right(Path(unquote(urlsplit(old).path)), here):
            return
        for table, column in PLACES:
            change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            connection.execute(change, (here.as_uri(), len(old) + 1, len(old), old))


def _is_right(place: Path, here: Path) -> bool:
    """Tell whether the folder that a store names has the artifacts of the folder that the store is in."""
    return place.exists() and (place.name != ARTIFACTS.name or place.samefile(here))


def store_words(error: BaseException) -> str:
    """Say what is wrong with MLflow's store, and what to do."""
    where = os.environ.get("MLFLOW_TRACKING_URI", str(STORE))
    reason = str(error).partition("\n")[0]
    if "out-of-date database schema" in reason:  # MLflow says so of a newer one too
        store = where if "://" in where else f"sqlite:///{where}"
        to_do = f"install that version, or make a copy of it and run `mlflow db upgrade {store}`"
        return masked(f"MLflow's store {where} is of another version of MLflow: {to_do}; the scores are kept in files")
    if any(words in reason for words in _DAMAGE):
        to_do = "move it away, and `merganser run` records every result again"
        return masked(f"MLflow's store {where} is damaged ({reason}): {to_do}; the scores are kept in files")
    return masked(
        f"MLflow's store {where} is locked or away ({reason}): run again when it is back; the scores are kept"
    )
