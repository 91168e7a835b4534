"""Remove files that are not a stage's inputs from a folder that it reads as a whole."""

import os
import shutil
from collections.abc import Collection


def remove_others(folder: str, wanted: Collection[str], tracked: Collection[str]) -> None:
    """Remove everything from a folder except the wanted paths, what is below them, and git's files.

    `tracked` holds git's files and their folders. All paths are absolute.
    """
    parents = {parent for path in wanted for parent in _parents(path, folder)}
    _remove(folder, frozenset(wanted), parents, tracked)


def _remove(folder: str, wanted: Collection[str], parents: Collection[str], tracked: Collection[str]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in wanted:
                continue
            if not entry.is_dir(follow_symlinks=False):
                if entry.path not in tracked:
                    os.unlink(entry.path)
            elif entry.path in parents or entry.path in tracked:
                _remove(entry.path, wanted, parents, tracked)
            else:
                shutil.rmtree(entry.path)


def _parents(path: str, top: str) -> list[str]:
    found = []
    while (path := os.path.dirname(path)).startswith(top + os.sep):
        found.append(path)
    return found
