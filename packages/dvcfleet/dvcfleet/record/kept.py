"""Texts kept beside the ledger, whose lines name them by their sha256, which is also their file's name."""

import hashlib
from contextlib import suppress
from pathlib import Path

from dvcfleet.disk import write_durably


def keep(path: Path, content: bytes) -> None:
    """Write a text at the path that has its digest as its name, unless it is there or the disk is full."""
    if not is_intact(path):
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            write_durably(path, content)


def sha256(content: bytes) -> str:
    """Return the digest by which a line names a text, or the line before."""
    return hashlib.sha256(content).hexdigest()


def is_intact(path: Path) -> bool:
    """Tell whether a file is there, with the bytes that its name is the digest of."""
    try:
        return sha256(path.read_bytes()) == path.stem
    except OSError:
        return False


def damaged(folder: Path) -> list[Path]:
    """List the files of a folder of such texts whose bytes are not what their names say."""
    return [path for path in sorted(folder.glob("[0-9a-f]" * 64 + ".*")) if not is_intact(path)]
