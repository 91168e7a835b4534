"""Which parameter of a module a checkpoint means by a name.

A checkpoint may leave out or add the prefix of the inner model, spell LayerNorm as TensorFlow did, and hold what the
module does without: buffers that are computed today, heads of the pretraining. Its tensors are renamed, stacked, fused
or split by the installed transformers' own conversion, as by `from_pretrained`: a Mixtral on disk has each expert's
three matrices, the module two parameters with all experts of a layer.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.checkpoints.architecture import CONFIG, is_buffer
from merganser.checkpoints.tensors import Spec
from merganser.errors import InputError, quoting

# Of language models that classify: a task's own head, as transformers names it.
HEAD_NAMES = ("score.*", "classifier.*", "classification_head.*", "logits_proj.*", "sequence_summary.*")
Shapes = Mapping[str, tuple[int, ...]]
Parts = Mapping[str, Tensor]  # tensors of a checkpoint, by their names in it
Recorded = Callable[..., dict[str, Tensor]]


class Conversion:
    """The conversion of one module of transformers."""

    def __init__(self, module: Any, shapes: Shapes) -> None:
        """Take a module as it was built, and the shapes of its parameters."""
        from transformers.conversion_mapping import get_model_conversion_mapping  # a second, which open_clip saves
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        transforms = get_model_conversion_mapping(module)
        self._module, self._shapes = module, dict(shapes)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}
        self._found: dict[str, tuple[str, str | None]] = {}
        self._recorded: dict[tuple[Any, ...], Recorded] = {}

    def target(self, name: str) -> tuple[str, str | None]:
        """Return the parameter that a tensor becomes, and the pattern of the operation that combines several.

        The pattern is None for a tensor that is only renamed.
        """
        if name not in self._found:
            self._found[name] = self._target(name)
        return self._found[name]

    def _target(self, name: str) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        prefix = self._module.base_model_prefix
        renamed = rename_source_key(name, self._renamings, self._converters, prefix, self._shapes)
        if renamed[0] in self._shapes:
            return renamed
        bare = rename_source_key(name, [], [], prefix, self._shapes)
        return bare if bare[0] in self._shapes else (renamed[0], None)

    def is_complete(self, target: str, parts: Parts) -> bool:
        """Tell whether these tensors have as many values as the parameter that they form.

        If several tensors form several parameters, only the end of the checkpoint tells.
        """
        converter = self._converter(next(iter(parts)))
        if len(converter.source_patterns) > 1 and len(converter.target_patterns) > 1:
            return False
        return sum(part.numel() for part in parts.values()) >= prod(self._shapes[target])

    def converted(self, target: str, parts: Parts) -> dict[str, Tensor]:
        """Form the module's parameters from these tensors; raise InputError if transformers' operation cannot."""
        with quoting(f"transformers cannot make {target} of {name_tensors(parts)}"):
            return self._run(target, ordered_experts(parts))

    def differentiable(self, target: str, parts: Parts) -> dict[str, Tensor]:
        """Form the module's parameters from these tensors with gradients, which transformers' operations lose."""
        from torch.fx.experimental.proxy_tensor import make_fx  # a second, which learners and Fisher statistics need

        ordered = ordered_experts(parts)
        key = (target, *((name, value.shape, value.dtype) for name, value in ordered.items()))
        if key not in self._recorded:
            values = [value.detach() for value in ordered.values()]
            record = make_fx(
                lambda *values: self._run(target, dict(zip(ordered, values, strict=True))), tracing_mode="fake"
            )
            self._recorded[key] = record(*values)
        return self._recorded[key](*ordered.values())

    def _converter(self, name: str) -> Any:
        return self._by_pattern[self.target(name)[1] or ""]

    def _run(self, target: str, parts: Parts) -> dict[str, Tensor]:
        converter = deepcopy(self._converter(next(iter(parts))))
        for name, part in parts.items():
            converter.add_tensor(target, name, self.target(name)[1], part)
        made = converter.convert(target, model=self._module, config=self._module.config)
        return {own: value[0] if isinstance(value, list) else value for own, value in made.items()}


def name_tensors(names: Sequence[str] | Parts) -> str:
    """Name the first of several tensors, and count the others.

    >>> name_tensors(["experts.1.w1", "experts.0.w1", "experts.0.w3"])
    'experts.0.w1 and 2 more tensors'
    """
    first, *others = sorted(names)
    return f"{first} and {len(others)} more tensor{'s' if len(others) > 1 else ''}" if others else first


def ordered_experts(parts: Parts) -> dict[str, Tensor]:
    """Sort tensors as transformers does, expert 2 before expert 10."""
    from transformers.core_model_loading import dot_natural_key

    return {name: parts[name] for name in sorted(parts, key=dot_natural_key)}


Named = tuple[str, tuple[str, ...], Tensor]  # a module's parameter: its name, those of the checkpoint, its value
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Naming:
    """A module's names and shapes, and the other tensors that its checkpoints may have."""

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
        """Yield the module's parameters from a checkpoint's tensors, each as soon as it is complete.

        Raises InputError for a tensor that is unknown or has another shape, and for incomplete parts.
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
        """Return the module's parameter that this tensor becomes a part of; None if it is a parameter itself."""
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
        """Return the module's name of a checkpoint's parameter; None for one that it does not need.

        Raises InputError if it is unknown, or has another shape.
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

    def check_missing(self, given: Iterable[str], may_lack: Sequence[str] = ()) -> list[str]:
        """Refuse a checkpoint that lacks a parameter of the module, except those matching `may_lack`; return these."""
        present = {*given, *self.computed}
        missing = [name for name in self.shapes if name not in present]
        if needed := [name for name in missing if not _matches(name, may_lack)]:
            raise InputError(f"{self.where}: parameter {min(needed)} of the architecture is missing in the checkpoint")
        return missing


def naming_of(
    module: Any, folder: Path, left_out: Sequence[str] = (), prefix: str | None = None, config: str = CONFIG
) -> Naming:
    """Describe a module; without a prefix it is one of transformers, with the prefix of its inner model."""
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
    """Name sinusoidal tables, which are parameters in a few architectures; Marian's are in no checkpoint.

    >>> from tests.transformers_models import tiny
    >>> computed_parameters(tiny("MarianMTModel"))
    ['model.encoder.embed_positions.weight', 'model.decoder.embed_positions.weight']
    """
    parts = [(name, part) for name, part in module.named_modules() if "Sinusoidal" in type(part).__name__]
    return [f"{name}.{own}" for name, part in parts for own, _ in part.named_parameters()]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
