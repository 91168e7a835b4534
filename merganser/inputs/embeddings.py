"""The folder of the tasks' text embeddings, with links to the deltas or factors that the same merge reads.

`texts` has a file per task. `read` has hard links to the files of deltas or factors.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors

KEY = "embedding"
TEXTS, READ = "texts", "read"


def write_embeddings(folder: Path, embeddings: Mapping[str, Tensor]) -> None:
    """Write each task's embedding (D,)."""
    (folder / TEXTS).mkdir()
    for task, embedding in embeddings.items():
        save_tensors(folder / TEXTS / f"{task}.safetensors", {KEY: embedding})


def read_embeddings(folder: Path, tasks: Iterable[str]) -> dict[str, Tensor]:
    """Read the embedding of each task."""
    return {task: SafetensorsFile(folder / TEXTS / f"{task}.safetensors").read(KEY) for task in tasks}


def link_read(source: Path, tasks: Iterable[str], folder: Path) -> None:
    """Link the files or folders of some tasks into a folder, and the base of difference vectors."""
    target = folder / READ
    target.mkdir()
    for name in [*(name for task in tasks for name in (f"{task}.safetensors", task)), "base"]:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=link_file)
        elif (source / name).is_file():
            link_file(source / name, target / name)


def link_file(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
