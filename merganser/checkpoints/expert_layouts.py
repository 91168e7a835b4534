"""Experts that one model stores one by one and another in stacks: transformers loads both, by its own conversions.

transformers 5 stacks the experts of Mixtral, Qwen's, DeepSeek's and others when it loads a model, and writes them one
by one. A file that was written otherwise, as by torch.save(model.state_dict()), has the stacks.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from merganser.checkpoints.known_models import ExpertConversion, stacks_of
from merganser.checkpoints.reading import architecture_beside
from merganser.checkpoints.tensors import DTYPES, Checkpoint, Rows, Spec
from merganser.checkpoints.views import Composed, Made
from merganser.errors import InputError

ONE = re.compile(r".+\.experts?\.\d+\..+")  # a tensor of one expert
STACK = re.compile(r".+\.experts?\.(?!\d+\.).+")


@dataclass(frozen=True)
class Stack:
    """A stack of experts as a model has it that is loaded, made of a file's tensors of each."""

    file: Checkpoint
    name: str
    conversion: ExpertConversion

    @cached_property
    def spec(self) -> Spec:
        """Return its dtype and shape."""
        specs = {pattern: self.file.spec(names[0]) for pattern, names in self.conversion.parts.items()}
        one = {pattern: [_empty(spec)] for pattern, spec in specs.items()}
        shape = self.conversion.stack(self.name, one).shape
        return Spec(next(iter(specs.values())).dtype, (self.conversion.count, *shape[1:]))

    def read(self, start: int, stop: int | None) -> Tensor:
        """Read the experts from `start` to before `stop`."""
        parts = self.conversion.parts.items()
        read = {pattern: [self.file.read(name) for name in names[start:stop]] for pattern, names in parts}
        return self.conversion.stack(self.name, read)


@dataclass(frozen=True)
class Expert:
    """A tensor of one expert, taken out of a file's stack; `name`: the stack's in the model, `stack`: in the file."""

    file: Checkpoint
    stack: str
    name: str
    conversion: ExpertConversion
    pattern: str
    number: int

    @cached_property
    def spec(self) -> Spec:
        """Return its dtype and shape."""
        whole = self.file.spec(self.stack)
        one = self.conversion.apart(self.name, _empty(Spec(whole.dtype, (1, *whole.shape[1:]))))
        return Spec(whole.dtype, tuple(one[self.pattern].shape))

    def read(self, start: int, stop: int | None) -> Tensor:
        """Read its rows from `start` to before `stop`."""
        rows = self.file.read_rows(Rows(self.stack, self.number, self.number + 1, self.conversion.count))
        return self.conversion.apart(self.name, rows)[self.pattern][start:stop].contiguous()


def with_experts_of(base: Checkpoint, tuned: Checkpoint) -> Checkpoint:
    """Show a model's experts as the base's files have them: one by one, or in stacks; others are left as they are."""
    if base is tuned or not any(len(each.spec(name).shape) == 3 for each in (base, tuned) for name in each.names):
        return tuned
    config = architecture_beside(base).config
    ours, loaded = stacks_of(config, base.names)
    theirs, held = stacks_of(architecture_beside(tuned).config or config, tuned.names)
    made, hidden = dict[str, Made](), set[str]()
    for name, conversion in ours.items():
        stack = held.get(name)
        if stack is not None and tuned.spec(stack).shape[:1] == (conversion.count,):
            hidden.add(stack)
            made |= {
                own: Expert(tuned, stack, name, conversion, pattern, number)
                for pattern, names in conversion.parts.items()
                for number, own in enumerate(names)
            }
    for name, conversion in theirs.items():
        if name in loaded:
            hidden |= {own for names in conversion.parts.values() for own in names}
            made[loaded[name]] = Stack(tuned, name, conversion)
    rest = {name: name for name in tuned.names if name not in hidden}
    return Composed(tuned, rest, dropped=tuned.dropped, made=made) if made else tuned


def check_layouts(base: Checkpoint, tuned: Checkpoint, missing: Collection[str], task: str) -> None:
    """Refuse experts in stacks on one side and one by one on the other that the installed transformers cannot convert.

    `missing`: what of the base is not found in the task's model.
    """
    one = re.compile(ONE), re.compile(STACK)
    for (kind, other), (first, second) in (
        (one, ("one by one", "in a stack")),
        (one[::-1], ("in a stack", "one by one")),
    ):
        ours = next((name for name in missing if kind.fullmatch(name)), None)
        theirs = next((name for name in tuned.names if other.fullmatch(name) and name not in base), None)
        if ours is not None and theirs is not None and not any(kind.fullmatch(name) for name in tuned.names):
            stored = f"experts are stored {second} ({theirs}), those of the base {first} ({ours})"
            raise InputError(
                f"{task}: its {stored}, and the installed transformers does not convert them\n"
                "Save both by one version of transformers: from_pretrained(FOLDER).save_pretrained(OUT)"
            )


def _empty(spec: Spec) -> Tensor:
    """Return a tensor without values."""
    return torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")
