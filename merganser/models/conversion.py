"""Load the tensors of a checkpoint as transformers does: renamed, stacked, fused or split by its own conversion.

A Mixtral on disk has each expert's three matrices; the module has two parameters with all experts of a layer. Patterns
and operations are those that `from_pretrained` takes, of the transformers that is installed.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any

from torch import Tensor

from merganser.errors import quoting

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
        """Return the parameter that a tensor goes to, and the pattern of the operation that makes it of several.

        The pattern is None for a tensor that is only renamed.
        """
        if name not in self._found:
            self._found[name] = self._target(name)
        return self._found[name]

    def _target(self, name: str) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        prefix = self._module.base_model_prefix
        found = rename_source_key(name, self._renamings, self._converters, prefix, self._shapes)
        if found[0] in self._shapes:
            return found
        bare = rename_source_key(name, [], [], prefix, self._shapes)
        return bare if bare[0] in self._shapes else (found[0], None)

    def is_complete(self, target: str, parts: Parts) -> bool:
        """Tell whether these tensors have as many numbers as the parameter that they go to.

        If several tensors make several parameters, only the end of the checkpoint tells.
        """
        converter = self._converter(next(iter(parts)))
        if len(converter.source_patterns) > 1 and len(converter.target_patterns) > 1:
            return False
        return sum(part.numel() for part in parts.values()) >= prod(self._shapes[target])

    def converted(self, target: str, parts: Parts) -> dict[str, Tensor]:
        """Make the module's parameters of these tensors; raise InputError if transformers' operation cannot."""
        with quoting(f"transformers cannot make {target} of {name_tensors(parts)}"):
            return self._run(target, ordered_experts(parts))

    def differentiable(self, target: str, parts: Parts) -> dict[str, Tensor]:
        """Make the module's parameters of these tensors, with gradients, which transformers' operations cut off."""
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
    """Order tensors as transformers does, expert 2 before expert 10."""
    from transformers.core_model_loading import dot_natural_key

    return {name: parts[name] for name in sorted(parts, key=dot_natural_key)}
