"""What each task is about, on disk: one text embedding a task, and beside them what they are read with.

A folder with `texts`, a file a task, and `read`, second names of the files of the deltas or factors that a merge reads.
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
    """Give a folder what a merge reads of some tasks: their files or folders, and the base of difference vectors."""
    target = folder / READ
    target.mkdir()
    for name in [*(name for task in tasks for name in (f"{task}.safetensors", task)), "base"]:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=link_file)
        elif (source / name).is_file():
            link_file(source / name, target / name)


def link_file(source: Path | str, target: Path | str) -> None:
    """Give a file a second name, or copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
