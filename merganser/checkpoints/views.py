"""A checkpoint seen another way: fewer tensors, other names, linear maps as out x in; nothing is copied."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint, Spec


@dataclass(frozen=True)
class View:
    """Some of a checkpoint's tensors, under names of the view's own; `transposed`: with rows and columns swapped."""

    inner: Checkpoint
    stored: Mapping[str, str]  # the names of the checkpoint itself by those of the view
    transposed: frozenset[str] = frozenset()
    dropped: Mapping[str, str | None] = field(default_factory=dict)  # left out: a second name of another, or a constant

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""
        return tuple(sorted(self.stored))

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        spec = self.inner.spec(self.stored[name])
        return Spec(spec.dtype, spec.shape[::-1]) if name in self.transposed else spec

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        tensor = self.inner.read(self.stored[name])
        return tensor.mT.contiguous() if name in self.transposed else tensor


def oriented_like(checkpoint: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Show a checkpoint's linear maps the way round that another one's are shown."""
    swapped = other.transposed if isinstance(other, View) else frozenset()
    return View(checkpoint, {name: name for name in checkpoint.names}, swapped) if swapped else checkpoint


def is_transposed(checkpoint: Checkpoint, name: str) -> bool:
    """Tell whether a checkpoint shows a tensor with rows and columns swapped."""
    return isinstance(checkpoint, View) and name in checkpoint.transposed


def as_stored(checkpoint: Checkpoint, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as the checkpoint's file has one of this name."""
    return tensor.mT.contiguous() if is_transposed(checkpoint, name) else tensor


def stored_spec(checkpoint: Checkpoint, name: str) -> Spec:
    """Return one tensor's dtype and shape as the checkpoint's file has it."""
    spec = checkpoint.spec(name)
    return Spec(spec.dtype, spec.shape[::-1]) if is_transposed(checkpoint, name) else spec


def stored_specs(checkpoint: Checkpoint) -> dict[str, Spec]:
    """Return each tensor's dtype and shape as the checkpoint's file has them."""
    return {name: stored_spec(checkpoint, name) for name in checkpoint.names}
