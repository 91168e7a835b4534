"""State dicts: load them, subtract, add, write."""

import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser.checkpoints.kinds import ParameterRules, parameter_kind

State = dict[str, Tensor]  # by parameter


def load(path: Path) -> State:
    """Load a checkpoint's file, or the one in its folder."""
    return load_file(path / "model.safetensors" if path.is_dir() else path)


def task_vectors(base: State, models: Mapping[str, Path], only: str) -> list[State]:
    """Load all fine-tuned models and subtract the base from each, in the parameters whose names match."""
    states = [load(path) for path in models.values()]
    names = [name for name in base if fnmatchcase(name, only)]
    return [{name: state[name] - base[name] for name in names} for state in states]


def write(path: Path, base: State, delta: State) -> None:
    """Add the merged delta to the base and write the whole model, to the disk."""
    save(path, {name: weights + delta[name] if name in delta else weights for name, weights in base.items()})


def save(path: Path, state: State) -> None:
    """Write a state dict, to the disk."""
    save_file(state, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Tell a linear map from everything else."""
    return parameter_kind(name, tensor.shape, ParameterRules()) == "matrix"


def by_layer(vectors: list[State], of_matrix: Callable[[list[Tensor]], Tensor], scaling: float) -> State:
    """Merge matrices by a function of all tasks' matrices, average everything else; scale the result."""
    merged = {}
    for name, first in vectors[0].items():
        deltas = [vector[name] for vector in vectors]
        if is_matrix(name, first):
            merged[name] = scaling * of_matrix([delta.flatten(1) for delta in deltas]).reshape(first.shape)
        else:
            merged[name] = scaling * torch.stack(deltas).mean(0)
    return merged
