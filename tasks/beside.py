"""What the stages that train something beside a model keep of each task: a kill loses at most the current task.

In the folder of what they write, a folder with a file a task, with a fingerprint of all that it follows from.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.config.params import Params
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.factors import fingerprint_of
from merganser.outputs import remove_others
from merganser.tasks.stage import digest_of_code
from merganser.tasks.stages import HEADS, SEEDS, VALIDATION

STATE, COST = "state", "cost.json"
FINGERPRINT, ABOUT = "fingerprint", "about"


class TaskTensors(NamedTuple):
    """What was made of one task: tensors, and what JSON can say of them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def fingerprints(
    params: Params, stage: str, start: Path, read: Callable[[str], list[Path]], about: Any
) -> dict[str, str]:
    """Return for each task a digest of all that what is made of it follows from.

    That is the stage's code, the model in the folder `start`, the task's head and validation data, what else of it the
    stage reads, and the choices in `about`.
    """
    evaluation, code = params.evaluation.model_dump(exclude={"split"}), digest_of_code(params, stage)
    common = [evaluation, about, code, sha256_of_tree(start)]
    found = {}
    for task in sorted(params.tasks):
        files = [HEADS / f"{task}.safetensors", VALIDATION / task, *read(task)]
        found[task] = sha256_of_json([task, *common, *map(sha256_of_tree, files)])
    return found


def kept_by_task(folder: Path, of: Mapping[str, str], make: Callable[[str], TaskTensors]) -> dict[str, TaskTensors]:
    """Make something of each task and write it, or read what was made before, by the fingerprints in `of`.

    Everything else in the folder, but what other seeds have, is removed: it is written again.
    """
    state = folder / STATE
    state.mkdir(parents=True, exist_ok=True)
    remove_others(folder, {STATE, SEEDS})
    remove_others(state, {f"{task}.safetensors" for task in of})
    found = {}
    for task, origin in of.items():
        path = state / f"{task}.safetensors"
        if fingerprint_of(path) == origin:
            file = SafetensorsFile(path)
            about = json.loads(file.metadata["merganser"])[ABOUT]
            found[task] = TaskTensors({name: file.read(name) for name in file.names}, about)
        else:
            found[task] = make(task)
            save_tensors(path, found[task].tensors, json.dumps({FINGERPRINT: origin, ABOUT: found[task].about}))
    return found
