"""The place of MLflow's store, and explanations of its errors; `merganser.tasks.store` imports MLflow."""

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
    """Return the folder with the comparison's MLflow store, usually this one.

    DVC runs a queued experiment in a copy of the workspace below `.dvc/tmp/exps`; its store is the comparison's.
    """
    copies = (folder for folder in Path.cwd().parents if folder.parts[-3:] == (".dvc", "tmp", "exps"))
    return next((folder.parents[2] for folder in copies), Path())


def follow_artifacts(root: Path) -> None:
    """Correct the artifacts' places in the store of a folder that was moved or copied: they are absolute.

    Nothing changes if the artifacts are at those places, or if the store has another form. A copy gets its own
    artifacts' places, even if the original's still exist.
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
    """Tell whether the folder named in a store has the artifacts of the store's own folder."""
    return place.exists() and (place.name != ARTIFACTS.name or place.samefile(here))


def store_words(error: BaseException) -> str:
    """Say what is wrong with MLflow's store, and the remedy."""
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
