"""The index of an overlay file, in its header: what is stored of each parameter, which gives its place in the file.

A task's parts are concatenated into one tensor per dtype, `<task>/<dtype>`, parameter by parameter and field by field.
Their sizes follow from the kind of part, the parameter's dimensions, and one count per task and parameter: an index
entry per field would be larger than the parts of a small model.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

from merganser.checkpoints.tensors import DTYPES, SafetensorsFile, Spec
from merganser.checkpoints.writing import layout
from merganser.limits import parse_json
from merganser.outputs import replacing
from merganser.overlays.parts import Binary, Dense, LowRank, Masked, Part, Signs, Sparse, tensors_of
from merganser.overlays.thresholded import Thresholded, ThresholdedFactors, ThresholdedVectors

LARGEST = 2**63  # of a mixture's weights: torch takes no larger whole numbers
KINDS: dict[str, type[Part]] = {
    part.kind: part
    for part in (Dense, LowRank, Thresholded, ThresholdedFactors, ThresholdedVectors, Masked, Sparse, Signs, Binary)
}


class PartFormat(NamedTuple):
    """What the tasks' parts of a parameter have in common."""

    kind: str
    dtype: str  # of the tensors other than bit masks, by safetensors' name
    dims: tuple[int, ...]  # (M, N) if factored, else (n,)


class ParameterParts(NamedTuple):
    """The parts of one parameter; a task without a part has no count."""

    form: PartFormat
    counts: Mapping[str, int]


class FieldPosition(NamedTuple):
    """The position of one field of a part."""

    tensor: str
    start: int  # number of values before it
    spec: Spec


@dataclass(frozen=True)
class OverlayIndex:
    """What is stored of each parameter for each task, in the file's order."""

    tasks: tuple[str, ...]
    rows: dict[str, ParameterParts] = field(default_factory=dict)
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def form_of(part: type[Part], dtype: str, shape: tuple[int, ...]) -> PartFormat:
    """Return the form of parts of this kind for a delta of this shape."""
    dims = (shape[0], prod(shape[1:])) if part.factored and shape else (prod(shape),)
    return PartFormat(part.kind, dtype, dims)


def form_of_part(part: Part, shape: tuple[int, ...]) -> PartFormat:
    """Return the form that a part in memory takes on disk; raise ValueError if its tensors do not fit the shape."""
    tensors = tensors_of(part)
    floating = (name for name, dtype in DTYPES.items() if dtype.is_floating_point)
    dtypes = {DTYPES[name]: name for name in floating}
    dtype = next(dtypes[tensor.dtype] for tensor in tensors.values() if tensor.dtype in dtypes)
    form = form_of(type(part), dtype, shape)
    for name, spec in part.specs(form.dims, part.count, dtype).items():
        if (tensors[name].numel(), tensors[name].dtype) != (prod(spec.shape), DTYPES[spec.dtype]):
            raise ValueError(f"{part.kind}.{name} is {tuple(tensors[name].shape)}, shape {shape} needs {spec}")
    return form


def field_positions(index: OverlayIndex) -> Iterator[tuple[str, str, dict[str, FieldPosition]]]:
    """Yield each part's task, parameter and fields, in the file's order."""
    ends: dict[str, int] = {}
    for parameter, (form, counts) in index.rows.items():
        for task, count in counts.items():
            positions = {}
            for name, spec in KINDS[form.kind].specs(form.dims, count, form.dtype).items():
                tensor = f"{task}/{spec.dtype}"
                positions[name] = FieldPosition(tensor, ends.get(tensor, 0), spec)
                ends[tensor] = positions[name].start + prod(spec.shape)
            yield task, parameter, positions


def stored_tensors(index: OverlayIndex) -> dict[str, Spec]:
    """Describe the tensors of the file in their order: by descending alignment, then by task."""
    lengths: dict[str, int] = {}
    for _, _, fields in field_positions(index):
        for place in fields.values():
            lengths[place.tensor] = place.start + prod(place.spec.shape)
    dtypes = sorted(DTYPES, key=lambda dtype: -DTYPES[dtype].itemsize)
    names = ((f"{task}/{dtype}", dtype) for dtype in dtypes for task in index.tasks)
    return {name: Spec(dtype, (lengths[name],)) for name, dtype in names if name in lengths}


def header_of(index: OverlayIndex, specs: Mapping[str, Spec]) -> bytes:
    """Return the header of the file that holds these tensors."""
    return layout(specs, {"merganser": serialise_index(index)}, list(specs))[0]


def file_size(index: OverlayIndex) -> int:
    """Return the size in bytes of the file that has this index."""
    specs = stored_tensors(index)
    return len(header_of(index, specs)) + sum(spec.nbytes for spec in specs.values())


def serialise_index(index: OverlayIndex) -> str:
    """Serialise an index: each parameter's form, by number, and for each task 0 (no part) or its count plus 1."""
    forms = list(dict.fromkeys(row.form for row in index.rows.values()))
    numbers = {form: number for number, form in enumerate(forms)}
    rows = {
        name: [numbers[row.form], *(row.counts[task] + 1 if task in row.counts else 0 for task in index.tasks)]
        for name, row in index.rows.items()
    }
    content: dict[str, Any] = {"tasks": index.tasks, "forms": forms, "parameters": rows}
    if index.mixtures:
        content["mixtures"] = index.mixtures
    return json.dumps(content, separators=(",", ":"))


def parse(text: str) -> OverlayIndex:
    """Parse an index; raise ValueError, KeyError or TypeError if it is malformed."""
    content = parse_json(text)
    tasks = tuple(str(task) for task in content["tasks"])
    forms = [_checked(PartFormat(str(kind), str(dtype), tuple(dims))) for kind, dtype, dims in content["forms"]]
    rows = {}
    for name, (number, *counts) in content["parameters"].items():
        if len(counts) != len(tasks) or not all(map(_is_count, (number, *counts))):
            raise ValueError(f"{name}: expected one count for each of {len(tasks)} tasks")
        if number >= len(forms):
            raise ValueError(f"{name}: form {number} does not exist")
        stored = {task: count - 1 for task, count in zip(tasks, counts, strict=True) if count}
        rows[name] = ParameterParts(forms[number], stored)
    mixtures = content.get("mixtures", {})
    for task, weights in mixtures.items():
        if not ({task, *weights} <= set(tasks) and all(map(_is_weight, weights.values()))):
            raise ValueError(f"the mixture of {task} names a task that is not in this file")
    return OverlayIndex(tasks, rows, mixtures)


def _checked(form: PartFormat) -> PartFormat:
    part = KINDS.get(form.kind)
    if part is None:
        raise ValueError(f"unknown kind of part {form.kind}")
    if form.dtype not in DTYPES or len(form.dims) != 1 + part.factored or not all(map(_is_count, form.dims)):
        raise ValueError(f"not a valid form: {form}")
    return form


def _is_weight(number: Any) -> bool:
    return type(number) in (int, float) and isfinite(number) and abs(number) < LARGEST


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and number >= 0


def rename_tasks(path: Path, names: Mapping[str, str]) -> None:
    """Replace an overlay file by the one that a merge of tasks of these names writes; `names`: new ones by old ones.

    The order of the names must stay, since the tasks' values lie in it.
    """
    file = SafetensorsFile(path)
    index = parse(file.metadata["merganser"])
    named = {task: names.get(task, task) for task in index.tasks}
    renamed = replace(
        index,
        tasks=tuple(named.values()),
        rows={
            parameter: ParameterParts(row.form, {named[task]: count for task, count in row.counts.items()})
            for parameter, row in index.rows.items()
        },
        mixtures={
            named[task]: {named[other]: weight for other, weight in weights.items()}
            for task, weights in index.mixtures.items()
        },
    )
    with open(path, "rb") as source, replacing(path) as out:
        out.write(header_of(renamed, stored_tensors(renamed)))
        source.seek(8 + int.from_bytes(source.read(8), "little"))
        shutil.copyfileobj(source, out)
