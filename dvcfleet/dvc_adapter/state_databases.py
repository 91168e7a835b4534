"""DVC's databases of hashes and links: they only save time, so that a damaged one is removed, and DVC makes it anew.

DVC keeps them outside the repository, and ends with an error of SQLite's if one is damaged.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dvcfleet.fast_paths import replaced
from dvcfleet.sqlite_files import is_damaged

_DATABASES = ("links/cache.db", "hashes/local/cache.db")


@contextmanager
def whole_databases() -> Iterator[None]:
    """Have DVC open its databases when they are first used, and the damaged ones removed before, within the block.

    Opening the two takes longer than all else of a command that uses neither.
    """
    from dvc_data.hashfile import cache, state

    opened = state.State

    class OfWholeDatabases(opened):  # type: ignore[misc, valid-type]
        """DVC's state."""

        def __init__(self, root_dir: str, tmp_dir: str | None = None, ignore: Any = None) -> None:
            if tmp_dir:
                _remove_damaged(Path(tmp_dir))
            super().__init__(root_dir, None, ignore)  # opens none
            self.tmp_dir = tmp_dir

        @cached_property
        def links(self) -> Any:
            """The database of links."""
            return cache.Cache(self._place("links"))

        @cached_property
        def hashes(self) -> Any:
            """The database of hashes."""
            return cache.HashesCache(self._place("hashes", "local"))

        def close(self) -> None:
            """Close those that were opened."""
            for name in vars(self).keys() & {"hashes", "links"}:
                getattr(self, name).close()

        def _place(self, *names: str) -> str:
            assert self.tmp_dir  # a state without a folder has no databases
            return os.path.join(self.tmp_dir, *names)

    with replaced(state, "State", OfWholeDatabases):
        yield


def _remove_damaged(folder: Path) -> None:
    for name in _DATABASES:
        path = folder / name
        if path.exists() and is_damaged(path):
            shutil.rmtree(path.parent)
            print(f"{path} was damaged: DVC makes it anew", file=sys.stderr)
