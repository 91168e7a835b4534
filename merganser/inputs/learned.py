"""What was learned, on disk: the values, who learned them, and of which tasks and parameters.

A folder of an entry of `learned` holds it in `result`, and in `read` what the merge reads with it.
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
    """Write what was learned."""
    about = {key: getattr(learned, key) for key in ("learner", "settings", "tasks", "names", "blocks")}
    save_tensors(folder / VALUES, learned.values, json.dumps(about))


def read_learned(folder: Path, tasks: Sequence[str]) -> Learned:
    """Read what was learned; raise InputError where it is of other tasks."""
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
