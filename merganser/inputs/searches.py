"""What a search found, on disk: all candidates with their scores on validation data, and the values it chose.

A folder of an entry of `searches` holds it in `result`, and in `read` what the merge reads with it.
"""

from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.limits import parse_json

RESULT, FOUND = "result", "search.json"


def read_search(folder: Path) -> dict[str, Any]:
    """Read what a search found; raise InputError where it has not run."""
    file = folder / RESULT / FOUND
    if not file.is_file():
        raise InputError(f"{file}: missing; run the stage that writes it first (`merganser run` does)")
    found: dict[str, Any] = parse_json(file.read_bytes())
    return found
