"""DVC's databases of hashes and links: they only save time, so that a damaged one is removed, and DVC makes it anew.

DVC keeps them outside the repository, and ends with an error of SQLite's if one is damaged.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from dvcfleet.fast_paths import replaced
from dvcfleet.sqlite_files import is_damaged

_DATABASES = ("links/cache.db", "hashes/local/cache.db")


@contextmanager
def whole_databases() -> Iterator[None]:
    """Have DVC open its databases when they are first used, and the damaged ones removed before, within the block.

    Opening the two takes longer than all else of a command that uses neither.
    """
    from dvc_data.hashfile import state

    opened, opening = state.State, RLock()
    if opened.__module__ == __name__:  # in such a block already
        yield
        return

    class OfWholeDatabases(opened):  # type: ignore[misc, valid-type]
        """DVC's state."""

        is_open = False

        def __init__(self, root_dir: str, tmp_dir: str | None = None, ignore: Any = None) -> None:
            if tmp_dir:
                _remove_damaged(Path(tmp_dir))
            super().__init__(root_dir, None, ignore)  # opens none
            self.tmp_dir = tmp_dir

        def __getattr__(self, name: str) -> Any:
            """Open them when something is asked for that DVC has only then."""
            with opening:  # threads that store outputs ask at the same time
                if vars(self).get("tmp_dir") and not self.is_open:  # a state without a folder has no databases
                    self.is_open = True
                    try:
                        super().__init__(self.root_dir, self.tmp_dir, self.ignore)
                    except BaseException:
                        self.is_open = False
                        raise
            if name in vars(self):
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def close(self) -> None:
            """Close them if they are open."""
            if self.is_open:
                super().close()

    with replaced(state, "State", OfWholeDatabases):
        yield


def _remove_damaged(folder: Path) -> None:
    for name in _DATABASES:
        path = folder / name
        if path.exists() and is_damaged(path):
            shutil.rmtree(path.parent)
            print(f"{path} was damaged: DVC makes it anew", file=sys.stderr)
