"""Read what others wrote within limits: of size, of depth, of where a link may lead."""

import json
import os
import re
from pathlib import Path
from typing import Any

from merganser.errors import InputError

SMALL = 2**20  # bytes: of a file that a person could have written
# Where DVC and the hub's client keep files by their content: links into these are how they put a file in its place.
_STORE = re.compile(r"/(blobs/[0-9a-f]{40,64}|(files/md5/)?[0-9a-f]{2}/[0-9a-f]{30})$")


def read_small(path: Path, limit: int = SMALL) -> bytes:
    """Read a file of at most so many bytes; raise InputError for a larger one."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(
            f"{path}: larger than {limit >> 10} KiB, which such a file has no reason to be; fetch it again"
        )
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError where it is none, is nested too deeply, or says a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def check_link(file: Path, folder: Path) -> None:
    """Refuse a link that leads out of its folder: what came from elsewhere must not take files of this machine along.

    Links into DVC's cache and the hub's are in order.
    """
    target = os.path.realpath(file)
    inside = Path(target).is_relative_to(os.path.realpath(folder))
    if not inside and not _STORE.search(target):
        raise InputError(f"{file}: a link to {target}, outside its folder; put the file itself there")


def check_plain(name: str, where: Path) -> None:
    """Refuse a file's name, read in another file, that could leave that file's folder."""
    if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
        raise InputError(f"{where}: names the file {name!r} outside its folder; only plain file names are read")
