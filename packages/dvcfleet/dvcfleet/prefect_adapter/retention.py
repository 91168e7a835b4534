"""Delete old flow runs from a run's Prefect database, as `python -m dvcfleet.prefect_adapter.retention FOLDER DATE`.

It does at once what a Prefect server does with PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED, by the same functions: the
servers of runs end before they would.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from dvcfleet.disk import vacuum
from dvcfleet.errors import FailedError

DATABASE = "prefect.db"
_LEAST = timedelta(hours=2)  # what Prefect keeps in any case is an hour
_WAIT_S = 1.0


def count_old(home: Path, since: datetime) -> tuple[int, int]:
    """Return how many flow runs a database has that ended before a time, and of how many."""
    path = home / DATABASE
    if not path.exists():
        return 0, 0
    ended = "FROM flow_run WHERE end_time < ? AND state_type IN ('COMPLETED', 'FAILED', 'CANCELLED', 'CRASHED')"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            old = connection.execute(f"SELECT count(*) {ended}", (_as_stored(_at_least(since)),)).fetchone()[0]
            return old, connection.execute("SELECT count(*) FROM flow_run").fetchone()[0]
    except sqlite3.Error:  # of another version, or damaged: its next server says so
        return 0, 0


def _at_least(since: datetime) -> datetime:
    return min(since, datetime.now(UTC) - _LEAST)


def _as_stored(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def delete_old(home: Path, since: datetime) -> None:
    """Delete what ended before a time, and give the space back to the disk; raise FailedError if Prefect does not."""
    command = [sys.executable, "-m", "dvcfleet.prefect_adapter.retention", str(home), since.isoformat()]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=_environment(home, since),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FailedError(f"{home / DATABASE}: Prefect did not delete old runs ({reason})")


def _environment(home: Path, since: datetime) -> dict[str, str]:
    seconds = str((datetime.now(UTC) - _at_least(since)).total_seconds())
    return os.environ | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / DATABASE}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": seconds,
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"PT{seconds}S",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    }


async def _delete() -> None:
    from prefect.server.database import provide_database_interface
    from prefect.server.services import db_vacuum

    database = provide_database_interface()
    await db_vacuum.vacuum_old_flow_runs(db=database)
    await db_vacuum.vacuum_old_events(db=database)
    await db_vacuum.vacuum_orphaned_logs(db=database)
    await db_vacuum.vacuum_orphaned_artifacts(db=database)
    await db_vacuum.vacuum_stale_artifact_collections(db=database)


def main() -> None:
    """Delete what is too old, in the database of the folder on the command line."""
    asyncio.run(_delete())
    vacuum(Path(sys.argv[1]) / DATABASE)


if __name__ == "__main__":
    main()
