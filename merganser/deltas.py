"""Task matrices: extracted from a pair of checkpoints, read back as layers over T tasks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints import Checkpoint, SafetensorsFile, Spec, write_checkpoint
from merganser.errors import InputError
from merganser.layers import Kind, LayerDeltas
from merganser.parameters import ParameterRules, as_matrix, delta_shape, is_merged, kind_of


def check_pair(base: Checkpoint, tuned: Checkpoint, rules: ParameterRules, task: str) -> dict[str, Kind]:
    """Compare a task's checkpoint with the base, from headers alone; return each merged parameter's kind.

    Raise InputError naming the model, the parameter and both shapes when they do not belong together.
    """
    merged = [name for name in base.names if is_merged(name, base.spec(name).dtype, rules)]
    if not merged:
        raise InputError(f"parameters.merged: no parameter of the base matches {list(rules.merged)}; see its names")
    absent = [name for name in merged if name not in tuned]
    if len(absent) == len(merged):
        raise InputError(f"{task}: another architecture: it has none of the base's parameters, such as {absent[0]}")
    if absent:
        remedy = "fetch the whole checkpoint, or leave it out of parameters.merged"
        raise InputError(f"{task}: {_listed(absent)} missing, which the base has; {remedy}")
    for name in merged:
        ours, theirs = base.spec(name).shape, tuned.spec(name).shape
        if ours != theirs:
            raise InputError(f"{task}: {name} has shape {list(theirs)}, in the base it has {list(ours)}")
    extra = [n for n in tuned.names if n not in base and is_merged(n, tuned.spec(n).dtype, rules)]
    if extra:
        raise InputError(f"{task}: the parameter {extra[0]} is not in the base; exclude it by parameters.merged")
    return {name: kind_of(name, base.spec(name).shape, rules) for name in merged}


def _listed(names: list[str]) -> str:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"the parameter {names[0]}{others} is"


def extract(base: Checkpoint, tuned: Checkpoint, rules: ParameterRules, task: str, out: Path) -> None:
    """Write the deltas of one task in float32, each parameter's kind and norm in the header.

    The norm is the Frobenius norm of the fine-tuned weights. Raises InputError at a NaN or infinity.
    """
    kinds = check_pair(base, tuned, rules, task)
    norms = {name: _norm(tuned, name, task) for name in kinds}
    specs = {name: Spec("F32", base.spec(name).shape) for name in kinds}
    deltas = ((name, _delta(base, tuned, name)) for name in kinds)
    write_checkpoint(out, specs, deltas, metadata=json.dumps({"kinds": kinds, "norms": norms}))


def _norm(checkpoint: Checkpoint, name: str, model: str) -> float:
    norm = float(torch.linalg.vector_norm(checkpoint.read(name), dtype=torch.float64))
    if not isfinite(norm):
        raise InputError(f"{model}: {name} holds NaN or infinity; such a checkpoint cannot be merged")
    return norm


def _delta(base: Checkpoint, tuned: Checkpoint, name: str) -> Tensor:
    _norm(base, name, "base")
    return tuned.read(name).to(torch.float32) - base.read(name).to(torch.float32)


class DeltaFile(SafetensorsFile):
    """One task's deltas."""

    @cached_property
    def index(self) -> dict[str, Any]:
        """Return what extraction noted: `kinds` and `norms` of the parameters."""
        return json.loads(self.metadata["merganser"])

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return each parameter's kind."""
        return self.index["kinds"]

    def matrix(self, name: str) -> Tensor:
        """Read a matrix parameter's delta, M x N."""
        return as_matrix(self.read(name))


@dataclass(frozen=True)
class Deltas:
    """The deltas of T tasks as layers, read one layer at a time."""

    files: Mapping[str, DeltaFile]
    seed: int = 0
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return tuple(self.files)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return each parameter's kind."""
        return next(iter(self.files.values())).kinds

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return tuple(self.kinds)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one task's delta of each parameter, (M, N) for a matrix."""
        first = next(iter(self.files.values()))
        return {name: delta_shape(first.spec(name).shape, kind) for name, kind in self.kinds.items()}

    def layer(self, name: str) -> LayerDeltas:
        """Read one parameter of all tasks."""
        kind, files = self.kinds[name], self.files.values()
        read = DeltaFile.matrix if kind == "matrix" else DeltaFile.read
        norms = tuple(file.index["norms"][name] for file in files)
        return LayerDeltas(name, kind, self.tasks, torch.stack([read(f, name) for f in files]), self.seed, norms=norms)

    def __iter__(self) -> Iterator[LayerDeltas]:
        return (self.layer(name) for name in self.names)


def open_deltas(
    folder: Path, tasks: list[str], seed: int = 0, embeddings: Mapping[str, Tensor] | None = None
) -> Deltas:
    """Open `<folder>/<task>.safetensors` of each task; the order is that of the names, whatever the one asked for."""
    return Deltas({task: DeltaFile(folder / f"{task}.safetensors") for task in sorted(tasks)}, seed, embeddings or {})
