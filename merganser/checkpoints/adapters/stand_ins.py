"""A stand-in for the base that an adapter can be applied to: its modules with their names and shapes, without values.

PEFT reads the shapes, classes and names of modules when it applies an adapter, and for most kinds no weights.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from merganser.checkpoints.architecture import Architecture
from merganser.checkpoints.kinds import is_linear
from merganser.checkpoints.known_models import without_values

Shapes = Mapping[str, Mapping[str, Sequence[int]]]  # by module, and by its parameter's own name, as the file has them
MAKERS = re.compile(r"aten::(empty|zeros|ones|full|rand|randn|randint|arange|randperm|eye|new_\w+|empty_strided)$")
SHAPE_ALONE = re.compile(r"aten::(new_\w+|\w+_like)$")  # what takes a tensor for its shape and dtype


class WeightsWantedError(Exception):
    """PEFT needs the base's weights to apply an adapter."""


class Watched(TorchDispatchMode):
    """Raise WeightsWantedError if a stand-in's values are read, and MemoryError above a limit."""

    def __init__(self, stand_in: Tensor | None, limit: int) -> None:
        super().__init__()
        self.place = None if stand_in is None else stand_in.untyped_storage().data_ptr()
        self.limit = limit  # entries of one tensor
        self.wanted = False  # whether a stand-in's values were wanted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at one operation before it is done."""
        name = func._schema.name
        if MAKERS.match(name) and _entries(name, args) > self.limit:
            raise MemoryError(f"a tensor of {_entries(name, args)} values")
        if self.place is not None and not func.is_view and not SHAPE_ALONE.match(name) and self._reads(args):
            self.wanted = True
            raise WeightsWantedError
        return func(*args, **(kwargs or {}))

    def _reads(self, args: Any) -> bool:
        tensors = (each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg]))
        on_cpu = (each for each in tensors if isinstance(each, Tensor) and each.device.type == "cpu")
        return any(each.layout is torch.strided and each.untyped_storage().data_ptr() == self.place for each in on_cpu)


def _entries(name: str, args: Sequence[Any]) -> int:
    numbers = [arg for arg in args if isinstance(arg, int | list | tuple)]
    if name in ("aten::arange", "aten::randperm"):
        return max((arg for arg in numbers if isinstance(arg, int)), default=0)
    sizes = next((arg for arg in numbers if isinstance(arg, list | tuple)), ())
    return prod(size for size in sizes if isinstance(size, int))


def model_of(shapes: Shapes, architecture: Architecture, embeddings: Collection[str]) -> tuple[nn.Module, bool]:
    """Build a model with these modules; tell whether it is a complete one that the installed transformers builds.

    Its parameters are on the meta device, until `placed` gives them values. `embeddings`: the known embedding modules.
    """
    known = without_values(architecture.config)
    named = dict(known.named_modules()) if known is not None else {}
    if known is not None and shapes.keys() <= named.keys():
        return known, True
    model = nn.Module()
    for name in sorted(shapes, key=_by_numbers):
        like = _like(named, name)
        made = like if like is not None else _made(name, shapes[name], architecture, name in embeddings)
        *parents, last = name.split(".")
        parent = model
        for part in parents:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, made)
    return model, False


def _by_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _like(named: Mapping[str, nn.Module], name: str) -> nn.Module | None:
    """Find the whole model's module with this name inside one of its parts, or with a part of this name."""
    parts = name.split(".")
    shorter = (".".join(parts[start:]) for start in range(len(parts)))
    suffix = next((own for own in shorter if own in named), None)
    longer = [own for own in named if own.endswith(f".{name}")]
    return named[suffix] if suffix else named[longer[0]] if len(longer) == 1 else None


def _made(name: str, shapes: Mapping[str, Sequence[int]], architecture: Architecture, embedding: bool) -> Any:
    """Build a module whose class follows from its parameters' names and shapes."""
    from transformers.pytorch_utils import Conv1D

    shape, bias = shapes.get("weight"), "bias" in shapes
    with torch.device("meta"):
        if shape is None or not 1 <= len(shape) <= 5:
            made = nn.Module()
            for own, size in shapes.items():
                made.register_parameter(own, nn.Parameter(torch.empty(*size)))
            return made
        if len(shape) == 1:
            return nn.LayerNorm(shape[0], bias=bias)
        if len(shape) > 2:
            convolution: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 3]
            return convolution(shape[1], shape[0], tuple(shape[2:]), bias=bias)
        if embedding or not (bias or is_linear(f"{name}.weight", shape)):
            return nn.Embedding(shape[0], shape[1])
        if architecture.is_in_by_out(f"{name}.weight", shape):
            return Conv1D(shape[1], shape[0])
        return nn.Linear(shape[1], shape[0], bias=bias)


@contextmanager
def placed(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a module's own parameters these values while the block runs."""
    before = {name: module._parameters.get(name) for name in values}
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=False))
    try:
        yield
    finally:
        for name, parameter in before.items():
            module.register_parameter(name, parameter)
