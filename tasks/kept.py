"""What a stage keeps of earlier starts: JSON files, each with a fingerprint of all that it was computed from."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

FINGERPRINT = "fingerprint"


def read_kept(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """Read what was computed from the same; None where it is not there, not whole, or of something else."""
    try:
        content = json.loads(path.read_text())
        return dict(content) if content[FINGERPRINT] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_unknown(folder: Path, known: Collection[str]) -> None:
    """Remove folders, which a kill left, and all files but these."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in known:
            path.unlink()
