"""Statistics of the tasks' models on data, on disk: for each task an index and a file a matrix, and the task's deltas.

A Gram matrix is stored as its upper triangle, once for all linear maps with one input. Legend: K inputs of such a map.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.errors import InputError, refusing
from merganser.inputs.deltas import open_deltas
from merganser.inputs.layers import (
    Layer,
    LayerDeltas,
    LayerFactors,
    LayerLowRank,
    LayerSource,
    MappedLayers,
    Side,
    Statistics,
)
from merganser.limits import parse_json, read_small

INDEX = "index.json"
INDEX_LIMIT = 2**25  # bytes: of the names of many parameters
GRAM, FISHER, BASE_FISHER = "gram", "fisher", "base_fisher"  # folders, and fields of a layer's statistics


@dataclass
class StatisticsIndex:
    """What a folder of statistics holds: the file of each parameter by what was measured, and the maps' sides."""

    examples: int
    forwards: int  # passes of one example each, if no kill made any of them needed twice
    backwards: int
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    sides: dict[str, Side] = field(default_factory=dict)

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps(vars(self), indent=2, sort_keys=True) + "\n"


def pack_triangle(gram: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row.

    >>> pack_triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    return gram[torch.ones(gram.shape, dtype=torch.bool).triu()]


def unpack_triangle(triangle: Tensor, out: Tensor) -> Tensor:
    """Write a symmetric matrix (K, K) of which the upper triangle is given.

    >>> unpack_triangle(torch.tensor([1.0, 2.0, 3.0]), torch.empty(2, 2))
    tensor([[1., 2.],
            [2., 3.]])
    """
    upper = torch.ones(out.shape, dtype=torch.bool).triu()
    out[upper] = triangle
    out.mT[upper] = triangle
    return out


@dataclass(frozen=True)
class StatisticsFolder:
    """One task's statistics."""

    path: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        """Return what is there: the `files` of parameters by what was measured, and the maps' `sides`."""
        path = self.path / INDEX
        if not path.is_file():
            raise InputError(f"{path}: no statistics; run the stage statistics first (`merganser run` does)")
        with refusing(f"{path}: no index of statistics", "measure them again"):
            index: dict[str, Any] = parse_json(read_small(path, INDEX_LIMIT))
            if {"files", "sides", "forwards", "backwards"} <= index.keys():
                return index
            raise ValueError("it lacks a key")

    def has(self, what: str, name: str) -> bool:
        """Tell whether something was measured of a parameter."""
        return name in self.index["files"].get(what, {})

    def fill(self, what: str, name: str, out: Tensor) -> None:
        """Read a statistic of a parameter; raise InputError where it is that of another shape."""
        path = self.path / what / self.index["files"][what][name]
        file = SafetensorsFile(path)
        size = len(out) * (len(out) + 1) // 2 if what == GRAM else out.numel()
        if file.spec(what).shape != ((size,) if what == GRAM else tuple(out.shape)):
            shape, expected = list(file.spec(what).shape), list(out.shape)
            reason = f"{what} of {name} has shape {shape}, the deltas need it for {expected}"
            raise InputError(f"{path}: {reason}: of another architecture; measure the statistics again")
        if what == GRAM:
            unpack_triangle(file.read(what), out)
        else:
            file.fill(out, what)


def passes_of(folder: Path, tasks: list[str]) -> dict[str, int]:
    """Count the passes of one example each that the statistics of some tasks took."""
    found = [StatisticsFolder(folder / task).index for task in tasks]
    return {direction: sum(index[direction] for index in found) for direction in ("forwards", "backwards")}


def open_statistics(folder: Path, tasks: list[str], seed: int = 0, part: str = "") -> LayerSource:
    """Open `<folder>/<task>/` of each task, and the deltas `<folder>/<task>.safetensors`, as layers with statistics.

    `part`: the folder in each task's where they lie, where it is not that itself.
    """
    folders = {task: StatisticsFolder(folder / task / part) for task in sorted(tasks)}
    return MappedLayers(open_deltas(folder, tasks, seed), partial(_with_statistics, folders=folders))


def _with_statistics(layer: Layer, folders: Mapping[str, StatisticsFolder]) -> LayerDeltas:
    """Read the statistics of a layer; adapters are multiplied out."""
    assert not isinstance(layer, LayerFactors)
    deltas = layer.dense() if isinstance(layer, LayerLowRank) else layer
    sides = {folder.index["sides"].get(layer.name, "columns") for folder in folders.values()}
    if len(sides) > 1:
        raise InputError(f"{layer.name}: the tasks' statistics are not of one architecture; measure them again")
    side = sides.pop()
    inputs = deltas.shape[1 if side == "columns" else 0] if layer.kind == "matrix" else 0
    shapes = {GRAM: (inputs, inputs), FISHER: deltas.shape, BASE_FISHER: deltas.shape}
    read = {what: _stacked(what, layer.name, shape, folders) for what, shape in shapes.items()}
    return replace(deltas, statistics=Statistics(side=side, **read))


def _stacked(what: str, name: str, shape: tuple[int, ...], folders: Mapping[str, StatisticsFolder]) -> Tensor | None:
    """Read what was measured of a parameter (T, ...); None where that is nothing."""
    having = [task for task, folder in folders.items() if folder.has(what, name)]
    if not having:
        return None
    if missing := [task for task in folders if task not in having]:
        raise InputError(f"{folders[missing[0]].path}: no {what} of {name}, which {having[0]} has; measure it again")
    stack = torch.empty(len(folders), *shape)
    for out, folder in zip(stack, folders.values(), strict=True):
        folder.fill(what, name, out)
    return stack
