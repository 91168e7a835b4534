"""Read an overlay file, and rebuild a task's own model."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.reading import Checkpoint, open_checkpoint, open_for_merging
from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.checkpoints.tensors import Spec
from merganser.checkpoints.views import in_file, laid_out_like, stored_specs
from merganser.checkpoints.writing import write_single
from merganser.errors import InputError
from merganser.overlays.index import KINDS, FieldPosition, field_positions, form_of, parse, stored_tensors
from merganser.overlays.parts import LowRank, mixed
from merganser.overlays.writer import FILE, UNIFIED


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
        found = []
        for task in self.tasks:
            fields = self._places.get((task, parameter))
            found.append(LowRank(**{name: self._read(place) for name, place in fields.items()}) if fields else None)
        return tuple(found)

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
