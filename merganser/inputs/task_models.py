"""A task's own model: the base plus the task's deltas, under the names and in the dtypes of the base's file."""

from collections.abc import Iterator

from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import as_stored
from merganser.inputs.deltas import DeltaFile


def own_parameter(base: Checkpoint, deltas: DeltaFile | None, name: str) -> Tensor:
    """Return one parameter of a task's own model, or of the base where no deltas are given."""
    weights = base.read(name)
    touched = deltas is not None and name in deltas.kinds and deltas.is_touched(name)
    return as_stored(base, name, added(weights, deltas.delta(name)) if deltas is not None and touched else weights)


def own_model(base: Checkpoint, deltas: DeltaFile | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a task's own model, or of the base where no deltas are given; its head is the base's."""
    return ((name, own_parameter(base, deltas, name)) for name in base.names)
