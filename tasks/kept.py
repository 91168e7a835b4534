"""What a stage keeps of earlier starts: files, each with a fingerprint of all that it was computed from."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from merganser.code_digest import code_digest
from merganser.config.params import Params
from merganser.hashes import sha256_of_json

FINGERPRINT = "fingerprint"


def digest_of_code(params: Params, *modules: str, kinds: Collection[str] | None = None) -> str:
    """Return a digest of the classes of these modules, of the family, and of kinds of task: of all by default.

    Each stands in the table of classes: it is a stage's, or found by its name.
    """
    named = {task.kind for task in params.tasks.values()} if kinds is None else kinds
    family = f"merganser.models.families.{params.base.family}"
    found = [*modules, family, *(f"merganser.evaluation.kinds.{kind}" for kind in sorted(named))]
    return sha256_of_json({module: code_digest(module) for module in found})


def read_kept(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """Read what was computed from the same; None where it is not there, not whole, or of something else."""
    try:
        content = json.loads(path.read_text())
        return dict(content) if content[FINGERPRINT] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
