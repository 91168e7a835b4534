"""A run's Prefect database: create it quickly, and delete old flow runs from it.

Prefect creates a database by more than a hundred migrations, which takes seconds. Here it is a copy of the first one
made in this environment. Old runs are deleted as by a Prefect server with PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED, by
the same functions: the servers of runs end before they would.

Both need a process of their own, since Prefect remembers the database that it first opened:
`python -m dvcfleet.prefect_adapter.database create|clean`.
"""

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from dvcfleet.disk import vacuum
from dvcfleet.errors import FailedError

DATABASE = "prefect.db"
KEPT = Path(sys.prefix) / "var" / "dvcfleet"  # removed with the environment and its Prefect
_REVISION = re.compile(r"^(down_)?revision\b[^=\n]*=\s*['\"](\w+)['\"]", re.MULTILINE)
_LEAST = timedelta(hours=2)  # what Prefect keeps in any case is an hour
_WAIT_S = 1.0


def make_database(path: Path) -> None:
    """Make a new database, under a temporary name first: a kill must not leave an incomplete one."""
    for old in path.parent.glob("*.draft*"):
        old.unlink()
    draft, kept = path.with_suffix(f".{os.getpid()}.draft"), KEPT / f"prefect-{head()}.db"
    if kept.is_file():
        shutil.copyfile(kept, draft)
    else:
        _migrate_apart(draft)
        _keep(draft, kept)
    if draft.exists():
        draft.rename(path)


def _keep(made: Path, kept: Path) -> None:
    """Keep a copy for later databases, if this environment is writable."""
    copy = kept.with_suffix(f".{os.getpid()}.draft")
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, copy)
        copy.rename(kept)


def is_current(path: Path) -> bool:
    """Tell whether a database has the installed Prefect's last migration."""
    with closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(head(),)]
        except sqlite3.Error:
            return False


def head() -> str:
    """Return the id of the installed Prefect's last migration, without importing Prefect."""
    spec = find_spec("prefect")
    assert spec is not None
    migrations = (Path(str(spec.origin)).parent / "server/database/_migrations/versions/sqlite").glob("*.py")
    revisions = [pair for path in migrations for pair in _REVISION.findall(path.read_text(encoding="utf-8"))]
    followed = {name for down, name in revisions if down}
    last = [name for down, name in revisions if not down and name not in followed]
    return last[0] if len(last) == 1 else ""


def _migrate_apart(path: Path) -> None:
    if error := _apart("create", path, {}):
        print(error, file=sys.stderr)
        path.unlink(missing_ok=True)
    else:
        vacuum(path)


def count_old(home: Path, since: datetime) -> tuple[int, int]:
    """Return how many flow runs a database has that ended before a time, and of how many."""
    path = home / DATABASE
    if not path.exists():
        return 0, 0
    ended = "FROM flow_run WHERE end_time < ? AND state_type IN ('COMPLETED', 'FAILED', 'CANCELLED', 'CRASHED')"
    moment = _at_least(since).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            old = connection.execute(f"SELECT count(*) {ended}", (moment,)).fetchone()[0]
            return old, connection.execute("SELECT count(*) FROM flow_run").fetchone()[0]
    except sqlite3.Error:  # of another version, or damaged: its next server says so
        return 0, 0


def _at_least(since: datetime) -> datetime:
    return min(since, datetime.now(UTC) - _LEAST)


def delete_old(home: Path, since: datetime) -> None:
    """Delete what ended before a time, and give the space back to the disk; raise FailedError if Prefect does not."""
    seconds = str((datetime.now(UTC) - _at_least(since)).total_seconds())
    settings = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": seconds,
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"PT{seconds}S",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    }
    path = home / DATABASE
    if error := _apart("clean", path, settings):
        raise FailedError(f"{path}: Prefect did not delete old runs ({error.splitlines()[-1]})")
    vacuum(path)


def _apart(task: str, path: Path, settings: dict[str, str]) -> str:
    """Carry out a task on a database in another process; return its error, empty if it succeeded."""
    done = subprocess.run(
        [sys.executable, "-m", "dvcfleet.prefect_adapter.database", task],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}"} | settings,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return (done.stderr.strip() or "no reason given") if done.returncode else ""


async def _carry_out(task: str) -> None:
    from prefect.server.database import provide_database_interface

    database = provide_database_interface()
    if task == "create":
        await database.create_db()
        return
    from prefect.server.services import db_vacuum

    await db_vacuum.vacuum_old_flow_runs(db=database)
    await db_vacuum.vacuum_old_events(db=database)
    await db_vacuum.vacuum_orphaned_logs(db=database)
    await db_vacuum.vacuum_orphaned_artifacts(db=database)
    await db_vacuum.vacuum_stale_artifact_collections(db=database)


if __name__ == "__main__":
    asyncio.run(_carry_out(sys.argv[1]))
