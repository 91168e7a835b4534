"""Find results whose MLflow record is lost: runs in receipts, and the report's, without importing MLflow."""

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.protocols import Output, Stage
from dvcfleet.errors import FailedError
from merganser.tasks.stages import RECORDS, REPORT
from merganser.tasks.tracking import STORE, store_words

_WAIT_S = 1.0  # for a store that is being written; then its records are taken to be there
_AT_ONCE = 500  # values in a query
# The runs that a store holds of those that receipts name, and where each report with one of them is kept.
_Recorded = tuple[set[str], set[str]]


def lost_evidence(stages: Sequence[Stage]) -> dict[str, str]:
    """Return the stages that must record their results again, with the reason; empty if nothing is lost.

    Runs in a Merganser project's folder. A tracking server is not asked. Raises FailedError if the store cannot be
    read.
    """
    store = _store()
    receipts = {} if store is None else dict(_receipts(stages, is_store_there=store.exists()))
    if store is None or not receipts:
        return {}
    recorded = _recorded(store, receipts.values())
    if recorded is None:
        return {}
    runs, reports = recorded
    gone = f"MLflow's store {store} is gone" if not store.exists() else "MLflow has no run of it any more"
    lost = {name: gone for name, run in receipts.items() if run not in runs}
    if not lost and (why := _lack_of_report(reports)):
        for stage in stages:
            if any(_is_at(out, REPORT) and out.hash_info for out in stage.outs):
                lost[stage.addressing] = why
    return lost


def _store() -> Path | None:
    """Return the store's file; None for a server's."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return STORE
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _receipts(stages: Sequence[Stage], is_store_there: bool) -> Iterator[tuple[str, str]]:
    """Yield stages with a receipt, here or in DVC's cache, and its run; without a store also those to pull first."""
    for stage in stages:
        for out in stage.outs:
            if out.hash_info and _is_at(out, RECORDS / Path(out.fs_path).name):
                kept = Path(out.fs_path) if out.exists else Path(out.cache.oid_to_path(out.hash_info.value))
                run = (read_json(kept) or {}).get("run_id", None if is_store_there else "")
                if isinstance(run, str):
                    yield stage.addressing, run


def _is_at(out: Output, path: Path) -> bool:
    return out.protocol == "local" and out.fs_path == str(path.absolute())


def _recorded(store: Path, runs: Collection[str]) -> _Recorded | None:
    """Look up these runs in a store, which may be missing; None if it is being written."""
    if not store.exists():
        return set(), set()
    try:
        uri = f"file:{quote(str(store))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_S)) as connection:
            return _asked(connection, list(runs))
    except sqlite3.Error as error:
        if "locked" in str(error) or "busy" in str(error):
            return None
        if "no such table" in str(error):  # an empty file is an empty store
            return set(), set()
        raise FailedError(store_words(error)) from error


def deleted_words(name: str, experiment: str) -> str:
    """Explain that a deleted experiment hides its runs and accepts no others, and how to restore it."""
    where = "" if os.environ.get("MLFLOW_TRACKING_URI") else f"MLFLOW_TRACKING_URI=sqlite:///{STORE} "
    command = f"{where}mlflow experiments restore --experiment-id {experiment}"
    return f"MLflow's experiment {name} is deleted, and its runs with it; `{command}` brings them back"


def _asked(connection: sqlite3.Connection, runs: list[str]) -> _Recorded:
    asked: set[str] = set()
    reports: set[str] = set()
    for start in range(0, len(runs), _AT_ONCE):
        some = runs[start : start + _AT_ONCE]
        which = f"({', '.join('?' * len(some))})"
        active = "runs.lifecycle_stage = 'active'"
        deleted = "SELECT experiments.name, experiment_id FROM experiments JOIN runs USING (experiment_id) WHERE"
        of_deleted = f"{deleted} experiments.lifecycle_stage = 'deleted' AND {active} AND run_uuid IN {which}"
        for name, experiment in connection.execute(of_deleted, some):
            raise FailedError(deleted_words(name, experiment))
        asked.update(
            run
            for (run,) in connection.execute(f"SELECT run_uuid FROM runs WHERE {active} AND run_uuid IN {which}", some)
        )
        # The run with the report has a tag for each entry, whose value is the entry's run.
        joined = "SELECT runs.artifact_uri FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid"
        reports.update(
            place for (place,) in connection.execute(f"{joined} WHERE {active} AND tags.value IN {which}", some)
        )
    return asked, reports


def _lack_of_report(reports: Collection[str]) -> str | None:
    """Return why the report must be recorded again; None if one of its copies is complete."""
    if not reports:
        return "MLflow has no run of it any more"
    # Elsewhere than here: a store of another machine's, or of a folder that was moved.
    folders = [folder for place in reports if (folder := local_folder(place)) and folder.is_relative_to(Path.cwd())]
    if len(folders) < len(reports):
        return None
    names = [path.relative_to(REPORT) for path in REPORT.rglob("*") if path.is_file()]
    if any(all((folder / REPORT / name).is_file() for name in names) for folder in folders):
        return None
    return f"MLflow's copy of it in {os.path.relpath(folders[0])} is not whole"


def local_folder(uri: str) -> Path | None:
    """Return the folder of an artifact location; None if it is not on this machine."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # as somebody else's store may say
        return None
    return Path(os.path.normpath(unquote(parts.path))) if parts.scheme in ("", "file") and not parts.netloc else None
