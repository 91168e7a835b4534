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


@dataclass
class StatisticsIndex:
    """The index of a folder of statistics: each parameter's file by kind of statistic, and the maps' sides."""

    examples: int
    forwards: int  # passes of one example each, if no kill made any of them needed twice
    backwards: int
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    sides: dict[str, Side] = field(default_factory=dict)
    unreached: list[str] | None = None  # linear maps that no example reached, such as experts; None: not counted

    def text(self) -> str:
        """Return the index as JSON."""
        content = {key: value for key, value in vars(self).items() if value is not None}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


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
        """Return the index: the `files` of parameters by kind of statistic, and the maps' `sides`."""
        path = self.path / INDEX
        if not path.is_file():
            raise InputError(f"{path}: no statistics; run the stage statistics first (`merganser run` does)")
        with refusing(f"{path}: no index of statistics", "measure them again"):
            index: dict[str, Any] = parse_json(read_small(path, INDEX_LIMIT))
            if {"files", "sides", "forwards", "backwards"} <= index.keys():
                return index
            raise ValueError("it lacks a key")

    def has(self, what: str, name: str) -> bool:
        """Tell whether a parameter has a statistic of this kind."""
        return name in self.index["files"].get(what, {})

    def reached(self, name: str) -> bool:
        """Tell whether an example reached a linear map; True for all other parameters."""
        return name not in self.index.get("unreached", ())

    def file(self, what: str, name: str) -> SafetensorsFile:
        """Open the file with a parameter's statistic of this kind."""
        return SafetensorsFile(self.path / what / self.index["files"][what][name])


def passes_of(folder: Path, tasks: list[str]) -> dict[str, int]:
    """Count the forward passes, one per example, of some tasks' statistics."""
    indices = [StatisticsFolder(folder / task).index for task in tasks]
    return {direction: sum(index[direction] for index in indices) for direction in ("forwards", "backwards")}


def open_statistics(folder: Path, tasks: list[str], seed: int = 0, part: str = "") -> LayerSource:
    """Open `<folder>/<task>/` of each task, and the deltas `<folder>/<task>.safetensors`, as layers with statistics.

    `part`: the subfolder of each task's folder that has the statistics, if there is one.
    """
    folders = {task: StatisticsFolder(folder / task / part) for task in sorted(tasks)}
    return MappedLayers(open_deltas(folder, tasks, seed), partial(_with_statistics, folders=folders))


def _with_statistics(layer: Layer, folders: Mapping[str, StatisticsFolder]) -> LayerDeltas:
    """Read the statistics of a layer; adapters are multiplied out."""
    assert not isinstance(layer, LayerFactors)
    deltas = layer.dense() if isinstance(layer, LayerLowRank) else layer
    kinds = dict.fromkeys(what for folder in folders.values() for what in folder.index["files"])
    having = {what: [folder for folder in folders.values() if folder.has(what, layer.name)] for what in kinds}
    sides = {folder.index["sides"].get(layer.name, "columns") for chosen in having.values() for folder in chosen}
    if len(sides) > 1:
        raise InputError(f"{layer.name}: the tasks' statistics are not of one architecture; measure them again")
    side: Side = sides.pop() if sides else "columns"
    read = {what: _stacked(what, deltas, side, folders) for what, chosen in having.items() if chosen}
    return replace(deltas, statistics=Statistics(read, side))


def _stacked(what: str, layer: LayerDeltas, side: Side, folders: Mapping[str, StatisticsFolder]) -> Tensor:
    """Read what was measured of a layer with each task's data: (T, ...) as the deltas, or over the inputs (T, K, K).

    A task has zeros if none of its examples reached the layer. Raises InputError if it lacks the statistic otherwise,
    and for a statistic of another shape.
    """
    having = {task: folder.file(what, layer.name) for task, folder in folders.items() if folder.has(what, layer.name)}
    (first, file), *_ = having.items()
    inputs = layer.shape[1 if side == "columns" else 0] if layer.kind == "matrix" else 0
    triangle = (inputs * (inputs + 1) // 2,) if inputs else None
    is_packed = file.spec(what).shape == triangle
    if missing := [task for task in folders if task not in having and folders[task].reached(layer.name)]:
        path = folders[missing[0]].path
        raise InputError(f"{path}: no {what} of {layer.name}, which {first} has; measure it again")
    stack = torch.zeros(len(folders), *((inputs, inputs) if is_packed else layer.shape))
    for out, task in zip(stack, folders, strict=True):
        if task not in having:
            continue
        file = having[task]
        shape = file.spec(what).shape
        if shape != (triangle if is_packed else layer.shape):
            reason = f"{what} of {layer.name} has shape {list(shape)}, the deltas need it for {list(layer.shape)}"
            raise InputError(f"{file.path}: {reason}: of another architecture; measure the statistics again")
        if is_packed:
            unpack_triangle(file.read(what), out)
        else:
            file.fill(out, what)
    return stack
