"""A format of checkpoints is a module with its reader, a row for its suffix and a row for that reader."""

from pathlib import Path

import numpy as np
import pytest
import torch

from merganser.checkpoints.reading import open_checkpoint
from tests.chapters import Copy
from tests.small_models import write_models

READER = '''
"""Arrays of a NumPy archive."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from merganser.checkpoints.tensors import FileCheckpoint, Spec, spec_of
from merganser.errors import InputError


@dataclass(frozen=True)
class NumpyArchive(FileCheckpoint):
    path: Path
    arrays: Mapping[str, Tensor]

    @cached_property
    def specs(self) -> dict[str, Spec]:
        return {name: spec_of(array) for name, array in self.arrays.items()}

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        return self.arrays[name].flatten()[start : start + prod(shape)].view(shape)


def open_numpy(path: Path) -> NumpyArchive:
    try:
        with np.load(path, allow_pickle=False) as file:
            return NumpyArchive(path, {name: torch.from_numpy(file[name]) for name in file})
    except ValueError as error:
        raise InputError(f"{path}: {error}; save plain arrays") from error
'''
FETCH = """
import sys
from pathlib import Path
from merganser.sources.fetching import fetch_checkpoint
fetch_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Add the format to a copy of the code, next to three models, the second of them in it."""
    copy = Copy(tmp_path / "copy", "Add a format of checkpoints")
    copy.add("merganser/checkpoints/numpy_files.py", READER)
    copy.insert("merganser/checkpoints/weight_files.py", '(".npz",), ', "TORCH_SUFFIXES)  # by")
    reading = "merganser/checkpoints/reading.py"
    copy.insert(
        reading, "from merganser.checkpoints.numpy_files import open_numpy\n", "from merganser.checkpoints.tensors"
    )
    copy.insert(reading, '".npz": open_numpy, ', "**dict.fromkeys(TORCH_SUFFIXES")
    write_models(tmp_path, tasks=2)
    stored = open_checkpoint(tmp_path / "task1")
    (tmp_path / "archived").mkdir()
    np.savez(tmp_path / "archived/weights.npz", **{name: stored.read(name).numpy() for name in stored.names})
    return copy


def test_a_models_file_is_merged_and_fetched_as_any(copy: Copy, tmp_path: Path) -> None:
    made = {}
    for second in ("task1", "archived"):
        merge = ["merge", "average", "--base", "base", "--model", "a=task0", "--model", f"b={second}"]
        done = copy.run("-m", "merganser", *merge, "--out", f"with-{second}", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        made[second] = (tmp_path / f"with-{second}/model.safetensors").read_bytes()
    assert made["archived"] == made["task1"]
    assert "weights.npz: " in (tmp_path / "with-archived/merge.yaml").read_text()
    (tmp_path / "fetched").mkdir()
    copy.run("-c", FETCH, "archived", "fetched", folder=tmp_path)
    fetched, stored = open_checkpoint(tmp_path / "fetched"), open_checkpoint(tmp_path / "task1")
    assert fetched.names == stored.names
    assert all(torch.equal(fetched.read(name), stored.read(name)) for name in stored.names)


def test_code_in_a_file_is_refused(copy: Copy, tmp_path: Path) -> None:
    np.savez(tmp_path / "archived/weights.npz", proj=np.array([print], dtype=object))
    done = copy.run("-m", "merganser", "check", "archived", folder=tmp_path)
    assert done.returncode == 2
    assert "Object arrays cannot be loaded when allow_pickle=False; save plain arrays" in done.stderr
