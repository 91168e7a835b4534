"""DVC's databases of hashes and links: they only save time, so that a damaged one is removed, and DVC makes it anew.

DVC keeps them outside the repository, and ends with an error of SQLite's if one is damaged.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvcfleet.fast_paths import replaced
from dvcfleet.sqlite_files import is_damaged

_DATABASES = ("links/cache.db", "hashes/local/cache.db")


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

    with replaced(state, "State", OfWholeDatabases):
        yield


def _remove_damaged(folder: Path) -> None:
    for name in _DATABASES:
        path = folder / name
        if path.exists() and is_damaged(path):
            shutil.rmtree(path.parent)
            print(f"{path} was damaged: DVC makes it anew", file=sys.stderr)
