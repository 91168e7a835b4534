"""Create a Prefect database quickly: as a copy of the first one made in this environment.

Prefect creates a database by more than a hundred migrations, which takes seconds.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

KEPT = Path(sys.prefix) / "var" / "dvcfleet"  # removed with the environment and its Prefect
_REVISION = re.compile(r"^(down_)?revision\b[^=\n]*=\s*['\"](\w+)['\"]", re.MULTILINE)


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
    """Run Prefect's migrations in a process of its own, since Prefect remembers the database it first opened."""
    command = [sys.executable, "-m", "dvcfleet.prefect_adapter.database", str(path)]
    if subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode:
        path.unlink(missing_ok=True)


def main() -> None:
    """Make a database, by Prefect's migrations, at the path on the command line."""
    import asyncio

    from prefect.server.database import provide_database_interface
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    path = Path(sys.argv[1])
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{path}"}):
        asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


if __name__ == "__main__":
    main()
