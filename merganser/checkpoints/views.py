"""A checkpoint seen another way: fewer tensors, other names, linear maps as out x in; nothing is copied."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint, Spec


@dataclass(frozen=True)
class View(Checkpoint):
    """Some of a checkpoint's tensors, under names of the view's own; `transposed`: with rows and columns swapped."""

    inner: Checkpoint
    stored: Mapping[str, str]  # the names of the checkpoint itself by those of the view
    transposed: frozenset[str] = frozenset()
    dropped: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""
        shown = {name: self.inner.spec(stored) for name, stored in self.stored.items()}
        swapped = {name: Spec(spec.dtype, spec.shape[::-1]) for name, spec in shown.items() if name in self.transposed}
        return shown | swapped

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        tensor = self.inner.read(self.stored[name])
        return tensor.mT.contiguous() if name in self.transposed else tensor


def oriented_like(checkpoint: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Show a checkpoint's linear maps the way round that another one's are shown."""
    names = {name: name for name in checkpoint.names}
    return View(checkpoint, names, other.transposed) if other.transposed else checkpoint


def as_stored(checkpoint: Checkpoint, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as the checkpoint's file has one of this name."""
    return tensor.mT.contiguous() if name in checkpoint.transposed else tensor


def stored_spec(checkpoint: Checkpoint, name: str) -> Spec:
    """Return one tensor's dtype and shape as the checkpoint's file has it."""
    spec = checkpoint.spec(name)
    return Spec(spec.dtype, spec.shape[::-1]) if name in checkpoint.transposed else spec


def stored_specs(checkpoint: Checkpoint) -> dict[str, Spec]:
    """Return each tensor's dtype and shape as the checkpoint's file has them."""
    return {name: stored_spec(checkpoint, name) for name in checkpoint.names}
