"""Text embeddings on disk, one per task."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.writing import save_tensors

KEY = "embedding"


def write_embedding(path: Path, embedding: Tensor) -> None:
    """Write one task's embedding (D,)."""
    save_tensors(path, {KEY: embedding})


def read_embeddings(folder: Path, tasks: Iterable[str]) -> dict[str, Tensor]:
    """Read `<folder>/<task>.safetensors` of each task."""
    return {task: SafetensorsFile(folder / f"{task}.safetensors").read(KEY) for task in tasks}
