"""Views of a checkpoint: fewer tensors, other names, stacks as their matrices, linear maps as out x in.

Nothing is copied. `as_stored` and `in_file` convert a view's tensors back to the file's layout.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint, Part, Rows, Spec, matrix_name, tensor_name


@dataclass(frozen=True)
class View(Checkpoint):
    """Some of a checkpoint's tensors, under other names; `transposed`: with rows and columns swapped."""

    inner: Checkpoint
    stored: Mapping[str, Part]  # what of the checkpoint each name shows: a tensor, or one matrix of a stack
    transposed: frozenset[str] = frozenset()
    dropped: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def specs(self) -> dict[str, Spec]:
        shown = {name: _shown(self.inner.spec(tensor_name(part)), part) for name, part in self.stored.items()}
        swapped = {name: Spec(spec.dtype, spec.shape[::-1]) for name, spec in shown.items() if name in self.transposed}
        return shown | swapped

    def read(self, name: str) -> Tensor:
        part = self.stored[name]
        tensor = self.inner.read(part) if isinstance(part, str) else self.inner.read_rows(part)[0]
        return tensor.mT.contiguous() if name in self.transposed else tensor

    def read_rows(self, rows: Rows) -> Tensor:
        """Read some rows of a tensor, and only these if the layout below allows it."""
        part = self.stored[rows.name]
        if isinstance(part, str) and rows.name not in self.transposed:
            return self.inner.read_rows(replace(rows, name=part))
        return super().read_rows(rows)


class Made(Protocol):
    """A tensor that is computed from others when it is read."""

    @property
    def spec(self) -> Spec:
        """Return its dtype and shape."""

    def read(self, start: int, stop: int | None) -> Tensor:
        """Read its rows from `start` to before `stop`; None: to the end."""


@dataclass(frozen=True)
class Composed(View):
    """Some of a checkpoint's tensors, and others computed from them."""

    made: Mapping[str, Made] = field(default_factory=dict)

    @cached_property
    def specs(self) -> dict[str, Spec]:
        return super().specs | {name: each.spec for name, each in self.made.items()}

    def read(self, name: str) -> Tensor:
        return self.made[name].read(0, None) if name in self.made else super().read(name)

    def read_rows(self, rows: Rows) -> Tensor:
        made = self.made.get(rows.name)
        return super().read_rows(rows) if made is None else made.read(rows.start, rows.stop)


def _shown(spec: Spec, part: Part) -> Spec:
    return spec if isinstance(part, str) else Spec(spec.dtype, spec.shape[1:])


def place_in_stack(checkpoint: Checkpoint, name: str) -> Rows | None:
    """Return the stack and the place of the matrix that a name shows; None for a tensor of its own."""
    part = checkpoint.stored.get(name) if isinstance(checkpoint, View) else None
    return part if isinstance(part, Rows) else None


def matrices_of(stack: str, count: int) -> dict[str, Part]:
    """Return the names of a stack's matrices, with their places in it."""
    return {matrix_name(stack, number): Rows(stack, number, number + 1, count) for number in range(count)}


def unstacked(checkpoint: Checkpoint) -> Checkpoint:
    """Show a checkpoint with whole stacks, as in its file."""
    if not isinstance(checkpoint, View) or all(isinstance(part, str) for part in checkpoint.stored.values()):
        return checkpoint
    names = {
        name if isinstance(part, str) else part.name: tensor_name(part) for name, part in checkpoint.stored.items()
    }
    return View(checkpoint.inner, names, checkpoint.transposed & names.keys(), checkpoint.dropped)


def as_in_file(checkpoint: Checkpoint) -> Checkpoint:
    """Show a checkpoint's linear maps and stacks in the layout of its file."""
    whole = unstacked(checkpoint)
    return View(whole.inner, whole.stored, dropped=whole.dropped) if isinstance(whole, View) else whole


def laid_out_like(checkpoint: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Show a checkpoint's stacks and linear maps in another one's layout."""
    stacks = {place.name: place.of for name in other.names if (place := place_in_stack(other, name))}
    names: dict[str, Part] = {}
    for name in checkpoint.names:
        names |= matrices_of(name, stacks[name]) if name in stacks else {name: name}
    return View(checkpoint, names, other.transposed & names.keys()) if stacks or other.transposed else checkpoint


def as_stored(checkpoint: Checkpoint, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor in the orientation of the checkpoint's file."""
    return tensor.mT.contiguous() if name in checkpoint.transposed else tensor


def part_in_file(checkpoint: Checkpoint, name: str, tensor: Tensor) -> tuple[Part, Tensor]:
    """Return a tensor in the layout of the checkpoint's file; a matrix of a stack with its place there."""
    stored, place = as_stored(checkpoint, name, tensor), place_in_stack(checkpoint, name)
    return (name, stored) if place is None else (place, stored.unsqueeze(0))


def in_file(checkpoint: Checkpoint, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors in the layout of the checkpoint's file: the matrices of a stack together, missing ones its own."""
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors:
        part, stored = part_in_file(checkpoint, name, tensor)
        if isinstance(part, str):
            yield part, stored
            continue
        held = stacks.setdefault(part.name, {})
        held[part.start] = stored
        if len(held) == part.of:
            yield part.name, torch.cat([held[number] for number in range(part.of)])
            held.clear()
    for stack, held in stacks.items():
        if held:
            whole = unstacked(checkpoint).read(stack).to(next(iter(held.values())), copy=True)
            for number, stored in held.items():
                whole[number] = stored[0]
            yield stack, whole


def from_file(checkpoint: Checkpoint, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the view of a tensor that has the layout of the file: a stack's matrices apart."""
    if name in checkpoint:
        return {name: as_stored(checkpoint, name, tensor)}
    named = matrices_of(name, len(tensor))
    return {each: as_stored(checkpoint, each, matrix) for each, matrix in zip(named, tensor, strict=True)}


def stored_specs(checkpoint: Checkpoint) -> dict[str, Spec]:
    """Return each tensor's dtype and shape in the checkpoint's file."""
    whole = unstacked(checkpoint)
    return {name: stored_spec(whole, name) for name in whole.names}


def stored_spec(checkpoint: Checkpoint, name: str) -> Spec:
    """Return one tensor's dtype and shape in the checkpoint's file."""
    spec = checkpoint.spec(name)
    return Spec(spec.dtype, spec.shape[::-1]) if name in checkpoint.transposed else spec
