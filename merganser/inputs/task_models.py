"""A task's own model: the base plus the task's deltas, under the names and in the dtypes of the base's file."""

from collections.abc import Iterator

from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.tensors import Checkpoint, parameter_of
from merganser.checkpoints.views import in_file
from merganser.inputs.deltas import DeltaFile


def own_model(base: Checkpoint, deltas: DeltaFile | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a task's own model, or of the base where no deltas are given; its head is the base's."""
    return in_file(base, ((name, _own(base, deltas, name)) for name in base.names))


def own_parameter(base: Checkpoint, deltas: DeltaFile | None, name: str) -> Tensor:
    """Return one parameter of a task's own model, or of the base where no deltas are given, by its name in the file."""
    shown = [name] if name in base else [each for each in base.names if parameter_of(each) == name]
    return next(in_file(base, ((each, _own(base, deltas, each)) for each in shown)))[1]


def _own(base: Checkpoint, deltas: DeltaFile | None, name: str) -> Tensor:
    weights = base.read(name)
    touched = deltas is not None and name in deltas.kinds and deltas.is_touched(name)
    return added(weights, deltas.delta(name)) if deltas is not None and touched else weights
