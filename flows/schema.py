"""A new Prefect database at once: `python -m flows.schema` writes prefect.sql, what Prefect's migrations end in.

Prefect itself makes a database by more than a hundred migrations one after another, which takes seconds.
"""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

SCHEMA = Path(__file__).with_name("prefect.sql")
_REVISION = re.compile(r"^(down_)?revision\b[^=\n]*=\s*['\"](\w+)['\"]", re.MULTILINE)


def make_database(path: Path) -> None:
    """Make a new database, under another name first: a kill must not leave one with half of its tables."""
    for old in path.parent.glob("*.draft*"):
        old.unlink()
    draft = path.with_suffix(f".{os.getpid()}.draft")
    if SCHEMA.exists() and f"'{head()}'" in SCHEMA.read_text(encoding="utf-8"):
        with closing(sqlite3.connect(draft)) as connection:
            connection.executescript(SCHEMA.read_text(encoding="utf-8"))
    else:
        _migrate_apart(draft)
    if draft.exists():
        draft.rename(path)


def is_current(path: Path) -> bool:
    """Tell whether a database is as the installed Prefect's last migration leaves it."""
    with closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(head(),)]
        except sqlite3.Error:
            return False


def head() -> str:
    """Return the installed Prefect's last migration, without importing Prefect: the one that no other follows."""
    spec = find_spec("prefect")
    assert spec
    assert spec.origin
    migrations = (Path(spec.origin).parent / "server/database/_migrations/versions/sqlite").glob("*.py")
    found = [pair for path in migrations for pair in _REVISION.findall(path.read_text(encoding="utf-8"))]
    followed = {name for down, name in found if down}
    last = [name for down, name in found if not down and name not in followed]
    return last[0] if len(last) == 1 else ""


def dump(path: Path) -> str:
    """Return a database as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return "".join(f"{line}\n" for line in connection.iterdump())


def _migrate_apart(path: Path) -> None:
    """Run Prefect's migrations in a process of its own, since Prefect remembers the database it first opened."""
    command = [sys.executable, "-m", "flows.schema", str(path)]
    if subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode:
        path.unlink(missing_ok=True)


def migrate(path: Path) -> None:
    """Make a database by Prefect's migrations."""
    import asyncio

    from prefect.server.database import provide_database_interface
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{path}"}):
        asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main() -> None:
    """Write prefect.sql for the installed Prefect; or, given a path, make a database there."""
    import tempfile

    if sys.argv[1:]:
        migrate(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prefect.db"
        migrate(path)
        SCHEMA.write_text(dump(path), encoding="utf-8")


if __name__ == "__main__":
    main()
