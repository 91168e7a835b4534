"""DVC's databases of hashes and links: they only save time, so that a damaged one is removed, and DVC makes it anew.

DVC keeps them outside the repository, and ends with an error of SQLite's if one is damaged.
"""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

_DATABASES = ("links/cache.db", "hashes/local/cache.db")
_WAIT_S = 1.0  # for one that is being written, which is then taken to be whole
# A larger one is not read whole, which would take longer than a plan.
_MOST_BYTES = 64_000_000


@contextmanager
def whole_databases() -> Iterator[None]:
    """Have DVC open its databases only after the damaged ones among them were removed, within the block."""
    from dvc_data.hashfile import state

    opened = state.State

    class OfWholeDatabases(opened):  # type: ignore[misc, valid-type]
        """DVC's state."""

        def __init__(self, root_dir: str, tmp_dir: str | None = None, ignore: Any = None) -> None:
            if tmp_dir:
                _remove_damaged(Path(tmp_dir))
            super().__init__(root_dir, tmp_dir, ignore)

    state.State = OfWholeDatabases
    try:
        yield
    finally:
        state.State = opened


def _remove_damaged(folder: Path) -> None:
    for name in _DATABASES:
        path = folder / name
        if path.exists() and _is_damaged(path):
            shutil.rmtree(path.parent)
            print(f"{path} was damaged: DVC makes it anew", file=sys.stderr)


def _is_damaged(path: Path) -> bool:
    if path.is_dir():
        return True
    what = "PRAGMA quick_check(1)" if path.stat().st_size < _MOST_BYTES else "SELECT 'ok' FROM sqlite_master LIMIT 1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            return connection.execute(what).fetchall() not in ([("ok",)], [])
    except sqlite3.OperationalError:  # locked, or not readable: DVC itself says so
        return False
    except sqlite3.DatabaseError:
        return True
