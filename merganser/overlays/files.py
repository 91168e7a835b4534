"""Write an overlay file and the shared deltas next to it; read both, and rebuild a task's own model."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Self

import torch
from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.reading import Checkpoint, open_checkpoint, open_for_merging
from merganser.checkpoints.tensors import SafetensorsFile, Spec, spec_of, to_bytes
from merganser.checkpoints.views import in_file, laid_out_like, stored_specs
from merganser.checkpoints.writing import layout, write_single
from merganser.errors import InputError
from merganser.outputs import replacing
from merganser.overlays.index import (
    KINDS,
    FieldPosition,
    OverlayIndex,
    ParameterParts,
    field_positions,
    form_of,
    form_of_part,
    header_of,
    parse,
    stored_tensors,
)
from merganser.overlays.parts import LowRank, Parts, mixed, tensors_of

FILE = "overlays.safetensors"
UNIFIED = "unified.safetensors"


class OverlayWriter:
    """Write parts as they arrive, one in memory at a time; the files appear if the `with` block ends without an error.

    Sizes are not known in advance, so values are spooled to disk by task and dtype and appended to the header at the
    end. The shared deltas, if there are any, are stored once for all tasks, in a file of their own.
    """

    def __init__(self, folder: Path, tasks: tuple[str, ...]) -> None:
        self.folder, self.tasks = folder, tasks
        self._rows: dict[str, ParameterParts] = {}
        self._unified: dict[str, Spec] = {}
        self._mixtures: Mapping[str, Mapping[str, float]] = {}
        self._spools: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def add(self, parameter: str, parts: Parts, shape: tuple[int, ...]) -> None:
        """Append the parts of one parameter of this shape.

        Raises ValueError if their forms differ, or if there are mixtures that differ from those of other parameters.
        """
        if parts.mixtures and self._mixtures not in ({}, parts.mixtures):
            raise ValueError(f"{parameter}: its mixtures differ from those of the parameters before it")
        self._mixtures = parts.mixtures or self._mixtures
        forms = {form_of_part(part, shape) for part in parts.tasks.values()}
        if len(forms) > 1:
            raise ValueError(f"{parameter}: the tasks' parts have different forms: {forms}")
        for form in forms:
            stored = {task: parts.tasks[task] for task in self.tasks if task in parts.tasks}
            self._rows[parameter] = ParameterParts(form, {task: part.count for task, part in stored.items()})
            for task, part in stored.items():
                for tensor in tensors_of(part).values():
                    self._spool(f"{task}/{spec_of(tensor).dtype}", tensor)
        if parts.unified is not None:
            self._unified[parameter] = Spec("F32", shape)
            self._spool(UNIFIED, parts.unified.to(torch.float32))

    def _spool(self, name: str, tensor: Tensor) -> None:
        if name not in self._spools:
            spool = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (the stack closes it)
            self._spools[name] = self._stack.enter_context(spool)
        self._spools[name].write(to_bytes(tensor))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._stack:
            if error is None:
                index = OverlayIndex(self.tasks, self._rows, self._mixtures)
                specs = stored_tensors(index)
                self._join(FILE, header_of(index, specs), list(specs))
                if self._unified:
                    self._join(UNIFIED, layout(self._unified, {}, list(self._unified))[0], [UNIFIED])

    def _join(self, file_name: str, header: bytes, spools: list[str]) -> None:
        with replacing(self.folder / file_name) as file:
            file.write(header)
            for name in spools:
                self._spools[name].seek(0)
                shutil.copyfileobj(self._spools[name], file)


class OverlayFile:
    """Read what each task adds, parameter by parameter: at most one part is in memory."""

    def __init__(self, path: Path) -> None:
        self.file = SafetensorsFile(path)
        try:
            self._index = parse(self.file.metadata["merganser"])
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(f"{path}: not an overlay file ({error}); merge again") from error
        if stored_tensors(self._index) != self.file.specs:
            raise InputError(f"{path}: its index does not match its tensors; merge again")
        self._places = {(task, name): fields for task, name, fields in field_positions(self._index)}
        shared = path.with_name(UNIFIED)
        self._unified = SafetensorsFile(shared) if shared.is_file() else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self._index.tasks

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters that have parts."""
        return tuple(self._index.rows)

    @property
    def is_mixed(self) -> bool:
        """Tell whether tasks take mixtures of the others' parts."""
        return bool(self._index.mixtures)

    def kind(self, parameter: str) -> str:
        """Return the kind of the parts of a parameter."""
        return self._index.rows[parameter].form.kind

    def low_rank(self, parameter: str) -> tuple[LowRank | None, ...]:
        """Read the factors of each task's part of a parameter, None for a task without one."""
        kind = self.kind(parameter)
        if kind != LowRank.kind:
            raise InputError(f"{self.file.path}: the parts of {parameter} are {kind}, not low-rank; merge again")
        parts = []
        for task in self.tasks:
            fields = self._places.get((task, parameter))
            parts.append(LowRank(**{name: self._read(place) for name, place in fields.items()}) if fields else None)
        return tuple(parts)

    def delta(self, task: str, parameter: str, shape: tuple[int, ...]) -> Tensor | None:
        """Return what the task adds to a parameter of this shape in float32, None if it adds nothing."""
        return self.mixture(self._index.mixtures.get(task, {task: 1.0}), parameter, shape)

    def mixture(self, weights: Mapping[str, float], parameter: str, shape: tuple[int, ...]) -> Tensor | None:
        """Return the weighted sum of what tasks add to a parameter, None if none of them adds anything."""
        stored = {other: weight for other, weight in weights.items() if (other, parameter) in self._places}
        if not stored:
            return None
        form = self._index.rows[parameter].form
        if form != form_of(KINDS[form.kind], form.dtype, shape):
            raise InputError(f"{self.file.path}: {parameter} is not stored with shape {list(shape)}; merge again")
        unified = self.shared(parameter, shape)
        return mixed(
            ((weight, self._part(other, parameter, shape, unified)) for other, weight in stored.items()), shape
        )

    def _part(self, task: str, parameter: str, shape: tuple[int, ...], unified: Tensor | None) -> Tensor:
        tensors = {name: self._read(place) for name, place in self._places[task, parameter].items()}
        try:
            return KINDS[self._index.rows[parameter].form.kind](**tensors).delta(shape, unified)
        except ValueError as error:
            raise InputError(f"{self.file.path}: {parameter} of {task}: {error}; merge again") from error

    def _read(self, place: FieldPosition) -> Tensor:
        return self.file.read_piece(place.tensor, place.start, place.spec.shape)

    def shared(self, parameter: str, shape: tuple[int, ...]) -> Tensor | None:
        """Read the delta of a parameter that the tasks' parts modulate, None where there is none."""
        if self._unified is None or parameter not in self._unified:
            return None
        if self._unified.spec(parameter) != Spec("F32", shape):
            raise InputError(
                f"{self._unified.path}: {parameter} is not stored as float32 of shape {list(shape)}; merge again"
            )
        return self._unified.read(parameter)


def open_overlays(merged: Path) -> OverlayFile | None:
    """Open a merged folder's overlays; return None if the method has no parts per task."""
    return OverlayFile(merged / FILE) if (merged / FILE).is_file() else None


def task_parameters(
    merged: Path, task: str, like: Checkpoint | None = None, modules: Sequence[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield a task's own model, the shared one plus the task's overlay, parameter by parameter.

    Linear maps are out x in, the dtype is the shared model's. `modules`: those in the merge's folder that are given.
    """
    shared = _open_shared(merged, like, modules)
    overlays = open_overlays(merged)
    if overlays is not None and task not in overlays.tasks:
        raise InputError(f"{merged / FILE}: no parts for the task {task!r}; it has {', '.join(overlays.tasks)}")
    for name in shared.names:
        tensor = shared.read(name)
        delta = overlays.delta(task, name, tuple(tensor.shape)) if overlays else None
        yield name, tensor if delta is None else added(tensor, delta)


def mixed_model(merged: Path, weights: Mapping[str, float]) -> Iterator[tuple[str, Tensor]]:
    """Yield the shared model plus a weighted sum of the tasks' parts, or without weights plus what these modulate.

    As `task_model`, parameter by parameter.
    """
    shared, overlays = open_for_merging(merged), open_overlays(merged)

    def parameters() -> Iterator[tuple[str, Tensor]]:
        for name in shared.names:
            tensor = shared.read(name)
            take = overlays and (partial(overlays.mixture, weights) if weights else overlays.shared)
            delta = take(name, tuple(tensor.shape)) if take else None
            yield name, tensor if delta is None else added(tensor, delta)

    return in_file(shared, parameters())


def task_model(
    merged: Path, task: str, like: Checkpoint | None = None, modules: Sequence[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield a task's own model, parameter by parameter, in the layout of the architecture's files."""
    shared = _open_shared(merged, like, modules)
    return in_file(shared, task_parameters(merged, task, like, modules))


def _open_shared(merged: Path, like: Checkpoint | None, modules: Sequence[str]) -> Checkpoint:
    return open_for_merging(merged, modules) if like is None else laid_out_like(open_checkpoint(merged), like)


def write_task_model(merged: Path, task: str, out: Path) -> None:
    """Write a task's own model as one safetensors file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_single(out, stored_specs(open_for_merging(merged)), task_model(merged, task))
