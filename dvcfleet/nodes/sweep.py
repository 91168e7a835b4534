"""Take out of a folder what does not belong there."""

import os
import shutil
from collections.abc import Collection


def sweep(folder: str, wanted: Collection[str], tracked: Collection[str]) -> None:
    """Leave in a folder what lies at the wanted paths, and what git keeps; take out all the rest.

    `tracked` holds git's files and their folders. All paths are absolute.
    """
    parents = {parent for path in wanted for parent in _parents(path, folder)}
    _sweep(folder, frozenset(wanted), parents, tracked)


def _sweep(folder: str, wanted: Collection[str], parents: Collection[str], tracked: Collection[str]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in wanted:
                continue
            if not entry.is_dir(follow_symlinks=False):
                if entry.path not in tracked:
                    os.unlink(entry.path)
            elif entry.path in parents or entry.path in tracked:
                _sweep(entry.path, wanted, parents, tracked)
            else:
                shutil.rmtree(entry.path)


def _parents(path: str, top: str) -> list[str]:
    found = []
    while (path := os.path.dirname(path)).startswith(top + os.sep):
        found.append(path)
    return found
