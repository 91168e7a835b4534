"""The identity of a comparison: a random id in a committed file, so that a clone has it too."""

import os
import re
import secrets
from pathlib import Path

from merganser.errors import InputError
from merganser.limits import read_small

FILE = Path(".merganser/id")
EXPERIMENT = "merganser"  # of MLflow, in a clone of Merganser's
_ID = re.compile("[0-9a-f]{16}")


def write_id(root: Path) -> None:
    """Write a new comparison's id."""
    (root / FILE).write_text(f"{secrets.token_hex(8)}\n", encoding="utf-8")


def read_id(root: Path) -> str | None:
    """Return a comparison's id, None for a clone of Merganser's; raise InputError if the file has no id."""
    path = root / FILE
    if not path.is_file():
        return None
    text = read_small(path).decode(errors="replace").strip()
    if not _ID.fullmatch(text):
        raise InputError(f"{path}: not an id of 16 hexadecimal digits; `git checkout {FILE}` brings it back")
    return text


def experiment_names(root: Path) -> list[str]:
    """Return the possible names of a comparison's MLflow experiment; the first is that of a new one.

    A tracking server may have experiments of other comparisons. A local store may be older than the id.
    """
    identity = read_id(root)
    own = [f"{EXPERIMENT}-{identity}"] if identity else []
    return own if own and os.environ.get("MLFLOW_TRACKING_URI") else [*own, EXPERIMENT]
