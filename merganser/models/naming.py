"""Which parameter of a module a checkpoint means by a name.

A checkpoint may leave out or add the prefix of the inner model, spell LayerNorm as TensorFlow did, and hold what the
module does without: buffers that are computed today, heads of the pretraining. What transformers renames, stacks or
splits on loading, it does here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.checkpoints.architecture import CONFIG, is_buffer
from merganser.checkpoints.tensors import Spec
from merganser.errors import InputError
from merganser.models.conversion import Conversion, Parts, name_tensors

Named = tuple[str, tuple[str, ...], Tensor]  # a module's parameter: its name, those of the checkpoint, its value
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Naming:
    """A module's names and shapes, and what else a checkpoint for it may hold."""

    where: Path  # the folder, for messages
    architecture: str
    shapes: Mapping[str, tuple[int, ...]]
    prefix: str  # of the inner model, which a name may lack or have too much
    left_out: tuple[str, ...]  # patterns of what a checkpoint may hold and the module does not
    ignored: tuple[str, ...]  # the same as regular expressions, from transformers
    computed: tuple[str, ...] = ()  # of the module, where a checkpoint may lack them
    config: str = CONFIG  # the file that describes the architecture
    conversion: Conversion | None = field(default=None, compare=False)  # of a module of transformers

    def own_values(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[Named]:
        """Give the module's parameters that a checkpoint's tensors make, each as soon as it is complete.

        Raises InputError for a tensor that is unknown or of another shape, and for parts that make no whole.
        """
        gathered: dict[str, dict[str, Tensor]] = {}
        for name, value in parameters:
            target = self.made_of_parts(name)
            if target is None:
                own = self.own(name, value.shape)
                if own is not None:
                    yield own, (name,), value
            else:
                parts = gathered.setdefault(target, {})
                parts[name] = value
                if self.conversion and self.conversion.is_complete(target, parts):
                    yield from self._made(target, gathered.pop(target))
        for target, parts in gathered.items():
            yield from self._made(target, parts)

    def made_of_parts(self, name: str) -> str | None:
        """Return the module's parameter that this tensor is stacked or split into; None if it is a parameter itself."""
        if self.conversion is None:
            return None
        target, pattern = self.conversion.target(name)
        return target if pattern else None

    def _made(self, target: str, parts: Parts) -> Iterator[Named]:
        assert self.conversion is not None
        for own, value in self.conversion.converted(target, parts).items():
            if tuple(value.shape) != self.shapes.get(own):
                has = f"{name_tensors(parts)} make {own} of shape {list(value.shape)}"
                said = f"{self.config} says {list(self.shapes[own])}" if own in self.shapes else "it has none"
                raise InputError(f"{self.where}: {has}, {said}")
            yield own, tuple(parts), value

    def own(self, name: str, shape: Sequence[int]) -> str | None:
        """Return the module's name of a checkpoint's parameter, None for one that it does without.

        Raises InputError where it is unknown, or of another shape.
        """
        todays = name if self.conversion is None else self.conversion.target(name)[0]
        for candidate in (todays, *self._spellings(name)):
            if candidate in self.shapes:
                expected = self.shapes[candidate]
                if list(shape) != list(expected):
                    raise InputError(
                        f"{self.where}: {name} has shape {list(shape)}, {self.config} says {list(expected)}"
                    )
                return candidate
        known = any(_matches(each, self.left_out) for each in (name, todays))
        if known or any(re.search(rule, name) for rule in self.ignored) or is_buffer(name, Spec("F32", tuple(shape))):
            return None
        raise InputError(
            f"{self.where}: parameter {name} is not in the architecture of {self.config} ({self.architecture})"
        )

    def _spellings(self, name: str) -> tuple[str, ...]:
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)
        return name, f"{self.prefix}.{name}", name.removeprefix(f"{self.prefix}.")

    def check_missing(self, given: Iterable[str], may_lack: Sequence[str] = ()) -> None:
        """Refuse a checkpoint that lacks a parameter of the module, but for those of the patterns in `may_lack`."""
        present = {*given, *self.computed}
        missing = [name for name in self.shapes if name not in present and not _matches(name, may_lack)]
        if missing:
            raise InputError(f"{self.where}: parameter {min(missing)} of the architecture is missing in the checkpoint")


def naming_of(
    module: Any, folder: Path, left_out: Sequence[str] = (), prefix: str | None = None, config: str = CONFIG
) -> Naming:
    """Describe a module; where no prefix is given it is one of transformers, with that of its own inner model."""
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    return Naming(
        where=folder,
        architecture=type(module).__name__,
        shapes=shapes,
        prefix=module.base_model_prefix if prefix is None else prefix,
        left_out=tuple(left_out),
        ignored=tuple(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()),
        computed=tuple(computed_parameters(module)),
        config=config,
        conversion=Conversion(module, shapes) if hasattr(module, "base_model_prefix") else None,
    )


def computed_parameters(module: Any) -> list[str]:
    """Name the tables of sines, which are parameters of a few architectures; Marian's are in no checkpoint.

    >>> from tests.transformers_models import tiny
    >>> computed_parameters(tiny("MarianMTModel"))
    ['model.encoder.embed_positions.weight', 'model.decoder.embed_positions.weight']
    """
    parts = [(name, part) for name, part in module.named_modules() if "Sinusoidal" in type(part).__name__]
    return [f"{name}.{own}" for name, part in parts for own, _ in part.named_parameters()]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
