"""Task matrices: extracted from pairs of checkpoints, and read as layers over T tasks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.adapters.binding import bind
from merganser.checkpoints.adapters.files import Adapter
from merganser.checkpoints.architecture import is_buffer, known_ties
from merganser.checkpoints.kinds import (
    FLOATS,
    Kind,
    ParameterRules,
    as_matrix,
    delta_shape,
    is_merged,
    is_quantised,
    parameter_kind,
    without,
)
from merganser.checkpoints.matching import matched
from merganser.checkpoints.reading import Checkpoint, place_of, read_into
from merganser.checkpoints.tensors import Rows, SafetensorsFile, Spec, spec_of
from merganser.checkpoints.views import unstacked
from merganser.checkpoints.writing import write_checkpoint
from merganser.errors import InputError, refusing
from merganser.inputs.layers import LayerDeltas, LayerLowRank, LayerTable
from merganser.inputs.pieces import PIECE, DivisibleSource
from merganser.limits import parse_json
from merganser.workers import BufferPool

ROW = 2**12  # entries whose squares are summed in float32
LEAST_NORM = 1e-12  # its square and the square of its inverse are within float32's range
CPU = torch.device("cpu")
LEFT, RIGHT = ".left", ".right"  # suffixes that no parameter's name can have, since a parameter has no children


def check_pair(base: Checkpoint, tuned: Checkpoint | Adapter, rules: ParameterRules, task: str) -> dict[str, Kind]:
    """Compare a task's model with the base by their headers; return the kind of each merged parameter.

    Empty parameters are left out: the merge has the base's. Raises InputError that names the model, the parameter
    and both shapes if the two models do not belong together.
    """
    whole = unstacked(base)
    _refuse_quantised(whole, rules, "base")
    merged = [name for name in whole.names if is_merged(name, whole.spec(name).dtype, rules)]
    if not merged:
        first = list(dict.fromkeys(name.split(".")[0] for name in whole.names))
        where, known = "--only" if rules.flags else "parameters.merged", ", ".join(first[:8])
        raise InputError(f"{where}: no parameter of the base matches {list(rules.merged)}; they begin with {known}")
    if isinstance(tuned, Adapter):
        bind(tuned, whole, rules, task)
    else:
        _check_whole(whole, matched(whole, tuned, rules, task), merged, rules, task)
    specs = {name: base.spec(name) for name in base.names if prod(base.spec(name).shape)}
    return {
        name: parameter_kind(name, spec.shape, rules)
        for name, spec in specs.items()
        if is_merged(name, spec.dtype, rules)
    }


def _check_whole(base: Checkpoint, tuned: Checkpoint, merged: list[str], rules: ParameterRules, task: str) -> None:
    """Compare a whole checkpoint with the base: every merged parameter is there, in the base's shape."""
    _refuse_quantised(tuned, rules, task)
    absent = [name for name in merged if name not in tuned]
    if len(absent) == len(merged):
        theirs = f"; its own begin with {tuned.names[0]}" if tuned.names else ""
        none = f"it has none of the base's parameters, such as {absent[0]}{theirs}"
        raise InputError(f"{task}: another architecture: {none}")
    resized = [name for name in merged if name in tuned and tuned.spec(name).shape != base.spec(name).shape]
    extra = [n for n in tuned.names if n not in base and is_merged(n, tuned.spec(n).dtype, rules)]
    remedy = without([*absent, *resized, *extra], [*merged, *extra], rules)
    if absent:
        inside = f"{absent[0].rpartition('.')[0]}."
        instead = next((name for name in extra if name.startswith(inside) and "." in name.removeprefix(inside)), None)
        mended = f"it has {instead} there: unwrap it (PEFT: merge_and_unload)" if instead else "fetch the whole model"
        raise InputError(f"{task}: {_listed(absent)} missing, which the base has; {mended}, or {remedy}")
    if resized:
        shapes = f"shape {list(tuned.spec(resized[0]).shape)}, in the base it has {list(base.spec(resized[0]).shape)}"
        mended = f"; {remedy}" if 2 * len(resized) < len(merged) else ": a model of another size"
        raise InputError(f"{task}: {resized[0]} has {shapes}{mended}")
    if codes := [name for name in merged if tuned.spec(name).dtype not in FLOATS]:
        kinds = f"stored as {tuned.spec(codes[0]).dtype}, in the base as {base.spec(codes[0]).dtype}"
        raise InputError(
            f"{task}: {codes[0]} is {kinds}: no weights; save the model again, or {without(codes, merged, rules)}"
        )
    if extra:
        source = known_ties(tuned.names).get(extra[0])
        tied = f": it ties it to {source}, from which the task's differs" if source in base.names else ""
        raise InputError(f"{task}: the parameter {extra[0]} is not in the base{tied}; {remedy}")


def _refuse_quantised(model: Checkpoint, rules: ParameterRules, who: str) -> None:
    specs = {name: model.spec(name) for name in model.names}
    quantised = [name for name, spec in specs.items() if is_quantised(name, spec, rules) and not is_buffer(name, spec)]
    if quantised:
        stored, remedy = model.spec(quantised[0]).dtype, without(quantised, model.names, rules)
        raise InputError(
            f"{who}: {_listed(quantised)} quantised, stored as {stored}; take the model it was made from, or {remedy}"
        )


def _listed(names: list[str]) -> str:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"the parameter {names[0]}{others} is"


def extract(base: Checkpoint, tuned: Checkpoint | Adapter, rules: ParameterRules, task: str, out: Path) -> None:
    """Write the deltas of one task in float32, with each parameter's kind and norm in the header.

    The norm is the Frobenius norm of the fine-tuned weights. An adapter's matrices are written as their factors;
    parameters that it does not change are not written. Raises InputError at a NaN or infinity.
    """
    kinds = check_pair(base, tuned, rules, task)
    if isinstance(tuned, Adapter):
        _extract_adapter(base, bind(tuned, base, rules, task), kinds, task, out)
        return
    tuned = matched(base, tuned, rules, task)
    norms = {name: checked_norm(tuned.read(name), name, task) for name in kinds}
    specs = {name: Spec("F32", base.spec(name).shape) for name in kinds}
    deltas = ((name, _delta(base, tuned, name)) for name in kinds)
    write_checkpoint(out, specs, deltas, metadata=json.dumps({"kinds": kinds, "norms": norms}))


def checked_norm(weights: Tensor, name: str, model: str) -> float:
    """Return the Frobenius norm of a parameter; raise InputError if it holds NaN or infinity."""
    norm = _norm(weights)
    if not isfinite(norm):
        raise InputError(f"{model}: {name} holds NaN or infinity; such a checkpoint cannot be merged")
    return norm


def stored_norm(checkpoint: Checkpoint, name: str, device: torch.device = CPU) -> float:
    """Return the Frobenius norm of a parameter, computed on a device, a piece at a time where it lies in a file."""
    place, spec = place_of(checkpoint, name), checkpoint.spec(name)
    if place is None or spec.dtype == "F64":
        return _norm(checkpoint.read(name))
    (file, stored), size = place, prod(spec.shape)
    pieces = (file.read_piece(stored, start, (min(PIECE, size - start),)) for start in range(0, size, PIECE))
    norm = _norm_of([part for piece in pieces for part in _row_norms(piece.to(device))])
    return norm if LEAST_NORM < norm < 1 / LEAST_NORM else _norm(checkpoint.read(name))


def _norm(weights: Tensor) -> float:
    """Return the Frobenius norm: squares summed by rows in float32, rows in float64, 30 times as fast as float64."""
    if weights.dtype != torch.float64:
        norm = _norm_of(_row_norms(weights))
        if LEAST_NORM < norm < 1 / LEAST_NORM:  # no square underflowed or overflowed in float32
            return norm
    return float(torch.linalg.vector_norm(weights, dtype=torch.float64))


def _row_norms(weights: Tensor) -> list[Tensor]:
    """Return the float32 norm of each row of `ROW` values, and the values after the last whole row."""
    flat = weights.reshape(-1)
    whole = len(flat) - len(flat) % ROW
    return [torch.linalg.vector_norm(flat[:whole].float().view(-1, ROW), dim=1), flat[whole:].float()]


def _norm_of(parts: list[Tensor]) -> float:
    return float(torch.cat(parts).double().norm())


def _delta(base: Checkpoint, tuned: Checkpoint, name: str) -> Tensor:
    weights = base.read(name)
    checked_norm(weights, name, "base")
    return tuned.read(name).to(torch.float32) - weights.to(torch.float32)


def _extract_adapter(base: Checkpoint, adapter: Adapter, kinds: dict[str, Kind], task: str, out: Path) -> None:
    """Write what an adapter bound to the base changes: factors for a low-rank update of a matrix, else the delta."""
    factored = {name for name in adapter.updates if kinds[name] == "matrix" and adapter.is_low_rank(name)}
    norms = {name: _adapted_norm(base, adapter, name, task) for name in kinds}
    shapes = {name: base.spec(name).shape for name in kinds if name in factored or name not in adapter.updates}
    specs = {name: Spec("F32", base.spec(name).shape) for name in adapter.updates if name not in factored}
    for name in sorted(factored):
        specs |= {key: spec_of(side) for key, side in _sides(adapter, name)}
    index = {"kinds": kinds, "norms": norms, "shapes": shapes}
    write_checkpoint(out, specs, _adapter_tensors(base, adapter, factored), json.dumps(index))


def _adapted_norm(base: Checkpoint, adapter: Adapter, name: str, task: str) -> float:
    weights = base.read(name)
    norm = checked_norm(weights, name, "base")
    if name not in adapter.updates:
        return norm
    return checked_norm(weights.to(torch.float32) + adapter.delta(name, weights), name, task)


def _adapter_tensors(base: Checkpoint, adapter: Adapter, factored: set[str]) -> Iterator[tuple[str, Tensor]]:
    for name in adapter.updates:
        if name in factored:
            yield from _sides(adapter, name)
        else:
            yield name, adapter.delta(name, base.read(name))


def _sides(adapter: Adapter, name: str) -> Iterator[tuple[str, Tensor]]:
    left, right = adapter.factors(name)
    yield f"{name}{LEFT}", left
    yield f"{name}{RIGHT}", right


class DeltaFile(SafetensorsFile):
    """One task's deltas: each dense, as two factors, or (if an adapter does not change the parameter) not stored."""

    @cached_property
    def index(self) -> dict[str, Any]:
        """Return the header's `kinds` and `norms` of the parameters, and `shapes` of those not stored dense."""
        with refusing(f"{self.path}: not a file of deltas", "extract it again"):
            index: dict[str, Any] = parse_json(self.metadata["merganser"])
            if index["kinds"].keys() <= index["norms"].keys():
                return index
            raise ValueError("some parameters have no norm")

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each parameter that may be merged."""
        return self.index["kinds"]

    def is_factored(self, name: str) -> bool:
        """Tell whether a matrix parameter's delta is stored as two factors."""
        return f"{name}{LEFT}" in self

    def is_touched(self, name: str) -> bool:
        """Tell whether a delta is stored for a parameter; otherwise it is zero."""
        return name in self or self.is_factored(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape."""
        return self.spec(name).shape if name in self else tuple(self.index["shapes"][name])

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """Read a delta's factors (M, Q) and (Q, N), of rank 0 if nothing is stored."""
        if self.is_factored(name):
            return self.read(f"{name}{LEFT}"), self.read(f"{name}{RIGHT}")
        rows, columns = delta_shape(self.shape(name), "matrix")
        return torch.zeros(rows, 0), torch.zeros(0, columns)

    def delta(self, name: str) -> Tensor:
        """Read a parameter's delta in the parameter's shape; factors are multiplied out."""
        if name in self:
            return self.read(name)
        if not self.is_factored(name):
            return torch.zeros(self.shape(name))
        left, right = self.factors(name)
        return (left @ right).reshape(self.shape(name))

    def matrix(self, name: str) -> Tensor:
        """Read a matrix parameter's delta, M x N."""
        return as_matrix(self.delta(name))


@dataclass(frozen=True)
class Deltas(DivisibleSource):
    """The deltas of T tasks, read one layer at a time; a parameter that no task changes is not a layer."""

    files: Mapping[str, DeltaFile]
    seed: int = 0
    known: LayerTable | None = None  # of these layers, where it does not follow from the files
    buffers: BufferPool = field(default_factory=BufferPool)

    @cached_property
    def table(self) -> LayerTable:
        if self.known:
            return self.known
        files = self.files.values()
        kinds = {name: kind for file in files for name, kind in file.kinds.items() if file.is_touched(name)}
        kinds, first = dict(sorted(kinds.items())), next(iter(files))
        return LayerTable(tuple(self.files), kinds, {n: delta_shape(first.shape(n), kind) for n, kind in kinds.items()})

    def alone(self, task: str) -> "Deltas":
        """Return the same layers for one task; they are zero if only other tasks change them."""
        return Deltas({task: self.files[task]}, self.seed, replace(self.table, tasks=(task,)))

    def is_low_rank(self, name: str) -> bool:
        """Tell whether a parameter is read as factors: no task stores it dense."""
        return not any(name in file for file in self.files.values())

    def is_divisible(self, name: str) -> bool:
        """Tell whether rows of this parameter can be read alone: every task stores it dense."""
        return all(name in file for file in self.files.values())

    def rows(self, rows: Rows) -> LayerDeltas:
        name, files = rows.name, self.files.values()
        deltas = self.buffers.empty(len(files), rows.stop - rows.start, *self.shapes[name][1:])
        for delta, file in zip(deltas, files, strict=True):
            read_into(delta, file, rows)
        norms = tuple(file.index["norms"][name] for file in files)
        return LayerDeltas(str(rows), self.kinds[name], self.tasks, deltas, self.seed, norms=norms, rows=rows)

    def layer(self, name: str) -> LayerDeltas | LayerLowRank:
        """Read one parameter of all tasks: as factors if no task stores it dense."""
        kind, files = self.kinds[name], self.files.values()
        norms = tuple(file.index["norms"][name] for file in files)
        if self.is_low_rank(name):
            left, right = zip(*(file.factors(name) for file in files), strict=True)
            return LayerLowRank(name, self.tasks, left, right, self.seed, norms=norms)
        deltas = self.buffers.empty(len(files), *self.shapes[name])
        for delta, file in zip(deltas, files, strict=True):  # one by one: stacking would hold all of them twice
            if name in file:
                read_into(delta, file, name)
            else:
                delta.copy_(file.matrix(name) if kind == "matrix" else file.delta(name))
        return LayerDeltas(name, kind, self.tasks, deltas, self.seed, norms=norms)


def open_deltas(folder: Path, tasks: list[str], seed: int = 0, in_order: bool = False) -> Deltas:
    """Open `<folder>/<task>.safetensors` of each task, sorted by name, or `in_order` as they are given."""
    names = tasks if in_order else sorted(tasks)
    return Deltas({task: DeltaFile(folder / f"{task}.safetensors") for task in names}, seed)
