"""A module that loads parameters by checkpoints' names, and keeps tied parameters tied.

A checkpoint may leave out tied parameters, or hold only one of their names. Shape legend: B examples, C classes, D
features, N rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Conv2d, Linear, Module, Parameter

from merganser.checkpoints.kinds import ParameterRules, parameter_kind
from merganser.errors import InputError
from merganser.inputs.layers import Side
from merganser.models import Extra, Inputs
from merganser.models.linear_maps import Watcher
from merganser.models.naming import Naming, Shapes, name_tensors

RULES = ParameterRules()  # a linear map is what is merged as a matrix by default
Maps = dict[str, tuple[Tensor, Side]]  # the weights of linear maps, with the side that their inputs lie on


class NamedModule:
    """A module with the names of the last loaded checkpoint; subclasses say how a batch runs."""

    reads = "*"  # the pattern of the parameters that a forward pass reads

    def __init__(self, module: Any, naming: Naming) -> None:
        """Take a module as it was built, with its ties."""
        self.module, self.naming = module, naming
        self.device: torch.device = next(module.parameters()).device
        self._ties = tied_parameter_names(module)
        self._watcher = Watcher()
        self._stored: dict[str, tuple[str, ...]] = {}  # a module's name to the checkpoint's of what it is made of
        self._parts: dict[str, Shapes] = {}  # the tensors that are stacked or split, by the parameter they go to
        self._maps: Maps | None = None  # found once for each model

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters of a model; raise InputError naming a missing, unknown or misshapen one."""
        for alias, source in self._ties.items():
            _set(self.module, alias, self.module.get_parameter(source))
        state = self.module.state_dict(keep_vars=True)
        names, tied = dict[str, tuple[str, ...]](), dict[str, dict[str, Tensor]]()
        shapes: dict[str, torch.Size] = {}
        with torch.no_grad():
            for own, stored, value in self.naming.own_values(_noting(parameters, shapes)):
                if own in names:
                    both = f"{name_tensors(names[own])} and {name_tensors(stored)}"
                    raise InputError(f"{self.naming.where}: {both} are one parameter; keep one of them")
                names[own] = stored
                source = self._ties.get(own, own)
                if source in self._ties.values():
                    tied.setdefault(source, {})[own] = value
                else:
                    state[own].copy_(value)
            self._load_tied(tied)
        self.naming.check_missing({*names, *self._ties, *tied})
        self._stored, self._maps = names, None
        self._parts = _parts_of(self.naming, shapes)

    def stored_name(self, own: str) -> str:
        """Return the loaded checkpoint's name of a module's parameter."""
        return self._stored.get(own, (own,))[0]

    def linear_maps(self) -> dict[str, Side]:
        """Return the names of linear maps' weights that are merged as matrices, sorted, so without heads.

        Each has the side of its inputs: the rows for GPT-2's, which are applied as x W.
        """
        return {name: side for name, (_, side) in sorted(self._known_maps().items())}

    def parts(self) -> frozenset[str]:
        """Name the loaded tensors that are stacked or split on loading, such as an expert's weights."""
        return frozenset(name for shapes in self._parts.values() for name in shapes)

    def watch(self, extra: Extra) -> AbstractContextManager[object]:
        """In the block, add the result of `extra` on a linear map's name and input rows to its output (N, out)."""
        return self._watcher.watch({name: weight for name, (weight, _) in self._known_maps().items()}, extra)

    def with_parameters(self, parameters: Inputs, run: Callable[[], Tensor]) -> Tensor:
        """Run with these parameters instead of the loaded ones; differentiable, without copies."""
        given = {f"module.{name}": value for name, value in self._own(parameters).items()}
        with self._watcher.using({name: parameters[name] for name in self.linear_maps() if name in parameters}):
            return functional_call(_Run(self.module, run), given, ())

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Return the logits of every class, or of every next token, for inference: (B, C)."""
        return self._batched(self._run, inputs)

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return the head's inputs, for inference: (B, D)."""
        return self._batched(self._features, inputs)

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Return the logits (B, C) with these parameters instead of the loaded ones; differentiable."""
        return self.with_parameters(parameters, lambda: self._batched(self._run, inputs))

    def _batched(self, run: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        """Run a batch (B, ...), in parts if its examples change each other's results."""
        return run(inputs)

    def _run(self, inputs: Inputs) -> Tensor:
        """Return a batch's logits (B, C)."""
        raise NotImplementedError

    def _features(self, inputs: Inputs) -> Tensor:
        """Return a batch's features (B, D)."""
        raise NotImplementedError

    def _passed(self, part: Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Run a batch; return the input and the output of a part of the module, in its first call."""
        seen: list[tuple[Tensor, Tensor]] = []
        hook = part.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
        try:
            self._run(inputs)
        finally:
            hook.remove()
        return seen[0]

    def _own(self, parameters: Inputs) -> dict[str, Tensor]:
        """Return parameters by the module's own names; stacked ones keep the parts that are not given."""
        own, gathered = dict[str, Tensor](), dict[str, dict[str, Tensor]]()
        for name, value in parameters.items():
            target = self.naming.made_of_parts(name)
            if target is not None:
                gathered.setdefault(target, {})[name] = value
            elif own_name := self.naming.own(name, value.shape):
                own[own_name] = value
        for target, parts in gathered.items():
            own |= self._made(target, parts)
        return own

    def _made(self, target: str, parts: Inputs) -> dict[str, Tensor]:
        """Combine parts into parameters, differentiably; parts that are not given are the loaded ones."""
        assert self.naming.conversion is not None
        first = next(iter(parts.values()))
        others = {name: shape for name, shape in self._parts.get(target, {}).items() if name not in parts}
        zeros = {name: first.new_zeros(shape) for name, shape in others.items()}
        made = self.naming.conversion.differentiable(target, {**parts, **zeros})
        if not others:
            return made
        ones = {name: torch.ones_like(value) for name, value in parts.items()}
        given = self.naming.conversion.converted(target, {**ones, **zeros})
        return {own: torch.where(given[own] > 0, value, self.module.get_parameter(own)) for own, value in made.items()}

    def _load_tied(self, tied: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Fill tied parameters from the given names; if their values differ, untie them."""
        for source, values in tied.items():
            shared = self.module.get_parameter(source)
            first = values[source] if source in values else next(iter(values.values()))
            shared.copy_(first)
            for own, value in values.items():
                if not torch.equal(value, first):
                    _set(self.module, own, Parameter(value.to(shared.device, shared.dtype, copy=True)))

    def _known_maps(self) -> Maps:
        if self._maps is None:
            made = {own for own, stored in self._stored.items() if self.naming.made_of_parts(stored[0])}
            self._maps = {
                self.stored_name(name): value
                for name, value in self._weights().items()
                if name not in made and parameter_kind(name, value[0].shape, RULES) == "matrix"
            }
        return self._maps

    def _weights(self) -> Maps:
        """Return weights of possible linear maps, by the module's own names.

        A convolution in groups, such as ConvNeXt's, is none: each group of outputs has its own input channels.
        """
        from transformers.pytorch_utils import Conv1D  # takes a second, which a network that has none saves

        sides: dict[type, Side] = {Conv1D: "rows", Linear: "columns", Conv2d: "columns"}
        weights: Maps = {}
        for name, part in self.module.named_modules():
            side = next((sides[kind] for kind in sides if isinstance(part, kind)), None)
            if side and fnmatchcase(f"{name}.weight", self.reads) and getattr(part, "groups", 1) == 1:
                weights[f"{name}.weight"] = (part.weight, side)
        return weights


def _noting(parameters: Iterable[tuple[str, Tensor]], shapes: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Record the shape of each tensor that passes."""
    for name, value in parameters:
        shapes[name] = value.shape
        yield name, value


def _parts_of(naming: Naming, shapes: Mapping[str, torch.Size]) -> dict[str, Shapes]:
    """Group the tensors that are parts of parameters, with their shapes, by the parameter."""
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        target = naming.made_of_parts(name)
        if target is not None:
            parts.setdefault(target, {})[name] = tuple(shape)
    return dict(parts)


class _Run(Module):
    """A function of a module, as a module that `functional_call` can run with other parameters."""

    def __init__(self, module: Module, run: Callable[[], Tensor]) -> None:
        super().__init__()
        self.module, self.run = module, run

    def forward(self) -> Tensor:
        return self.run()


def tied_parameter_names(module: Module) -> dict[str, str]:
    """Return the first name of each parameter with several names, by the others."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in named if first.setdefault(id(value), name) != name}


def _set(module: Module, name: str, value: Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, value)
