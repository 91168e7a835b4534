"""Paths as text: from a repository's root, and how they are nested."""

import os
from pathlib import Path


def from_root(root: str, path: str) -> str:
    """Return a path from the repository's root, with slashes."""
    return Path(os.path.relpath(path, root)).as_posix()


def is_in(path: str, folder: str) -> bool:
    """Tell whether a path is inside a folder."""
    return path.startswith(f"{folder}/")


def is_at_or_in(path: str, other: str) -> bool:
    """Tell whether two paths are equal, or the first one is inside the other."""
    return path == other or is_in(path, other)


def overlap(one: str, other: str) -> bool:
    """Tell whether two paths are equal or one contains the other."""
    return is_at_or_in(one, other) or is_in(other, one)
