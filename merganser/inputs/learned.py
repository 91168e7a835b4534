"""Learned values on disk, with their learner, tasks and parameters.

An entry of `learned` has a folder: `result` has the values, `read` links the other inputs of the merge.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError, refusing
from merganser.inputs.layers import Learned
from merganser.limits import parse_json

RESULT, VALUES, TRACE = "result", "values.safetensors", "trace.json"


def write_learned(folder: Path, learned: Learned) -> None:
    """Write learned values."""
    about = {key: getattr(learned, key) for key in ("learner", "settings", "tasks", "names", "blocks")}
    save_tensors(folder / VALUES, learned.values, json.dumps(about))


def read_learned(folder: Path, tasks: Sequence[str]) -> Learned:
    """Read learned values; raise InputError if they are of other tasks."""
    path = folder / VALUES
    if not path.is_file():
        raise InputError(f"{path}: nothing learned; run the stage learn first (`merganser run` does)")
    file = SafetensorsFile(path)
    with refusing(f"{path}: not written by a learner", "learn it again"):
        about = parse_json(file.metadata["merganser"])
        learned = Learned(**about, values={name: file.read(name) for name in file.names})
    if list(learned.tasks) != list(tasks):
        raise InputError(f"{path}: learned for {', '.join(learned.tasks)}, not for {', '.join(tasks)}; learn it again")
    return learned
