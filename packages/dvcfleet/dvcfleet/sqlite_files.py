"""Whether a database file of SQLite's is damaged, which SQLite may find out amid its use; free space given back."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

_WAIT_S = 1.0  # for one that is being written, which is then taken to be whole
_MOST_BYTES = 64_000_000  # a larger one is not read whole, which would take longer than a plan


def is_damaged(path: Path) -> bool:
    """Tell whether a file, or a folder in its place, is certainly no whole database; False if it cannot be opened."""
    if path.is_dir():
        return True
    what = "PRAGMA quick_check(1)" if path.stat().st_size < _MOST_BYTES else "SELECT 'ok' FROM sqlite_master LIMIT 1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            return connection.execute(what).fetchall() not in ([("ok",)], [])
    except sqlite3.OperationalError:  # locked, or not readable: who opens it says so
        return False
    except sqlite3.DatabaseError:
        return True


def vacuum(path: Path) -> None:
    """Give the free space in a database back to the disk; a database that is in use keeps it for what comes."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=_WAIT_S)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
