"""Observe the inputs of a network's linear maps, whatever its modules, and add to the outputs of blocks' MLPs.

Shape legend: B examples, N tokens, D features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import pad, unfold
from torch.utils._python_dispatch import TorchDispatchMode

from merganser.errors import InputError
from merganser.models import Blend, Extra

_aten = torch.ops.aten
# Where an operation has its rows, and the matrix that they are multiplied by.
_PRODUCTS = {_aten.mm.default: (0, 1), _aten.addmm.default: (1, 2), _aten.bmm.default: (0, 1)}


class _Watch(TorchDispatchMode):
    """Recognise weights by their memory, which a transposed view shares."""

    def __init__(self, names: dict[int, str], extra: Extra) -> None:
        super().__init__()
        self.names, self.extra = names, extra

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            rows, weight = (args[place] for place in _PRODUCTS[func])
            more = self._seen(weight, lambda: rows.reshape(-1, rows.shape[-1]))
            output = func(*args, **(kwargs or {}))
            return output if more is None else output + more.view(output.shape).to(output.dtype)
        if func is _aten.convolution.default:
            images, kernel, _, stride, padding, dilation, *_ = args
            if kernel.dim() == 4:
                self._seen(kernel, lambda: _patches(images, kernel, stride, padding, dilation))
        else:
            with self:  # what inference mode leaves whole, such as `linear`, into what it is made of
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        return func(*args, **(kwargs or {}))

    def _seen(self, weight: Tensor, rows: Callable[[], Tensor]) -> Tensor | None:
        name = self.names.get(weight.data_ptr())
        return None if name is None else self.extra(name, rows().detach())


def _patches(images: Tensor, kernel: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Cut images into the inputs of a convolution kernel: (N, in * height * width); one number is for both sides."""
    of_sides = (2 // len(values) * tuple(values) for values in (dilation, padding, stride))
    cut = unfold(images, kernel.shape[2:], *of_sides)
    return cut.transpose(1, 2).reshape(-1, cut.shape[1])


class Watcher:
    """Knows the memory of weights while they are watched: of a module's own, and of replacements."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    @contextmanager
    def watch(self, weights: Mapping[str, Tensor], extra: Extra) -> Iterator[None]:
        """Add the result of `extra` on a weight's input rows (N, in) to its output (N, out), except for convolutions.

        Attention is computed step by step meanwhile, since its fused form hides its maps.
        """
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with self.using(weights), _Watch(self._names, extra):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

    @contextmanager
    def using(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Recognise these values as the named weights while the block runs."""
        places = {weight.data_ptr(): name for name, weight in weights.items()}
        before = {place: self._names[place] for place in places if place in self._names}
        self._names |= places
        try:
            yield
        finally:
            for place in places:
                del self._names[place]
            self._names |= before


class WithBlocks:
    """The base class of networks with blocks; `mlps` names their MLPs' two linear layers by the ends of their names.

    Its family's `open_network` is annotated to return it.
    """

    module: Any
    reads = "*"  # the pattern of the parameters that a forward pass reads
    mlps: Sequence[tuple[str, str]] = ()

    def stored_name(self, own: str) -> str:
        """Return the loaded checkpoint's name of a module's parameter."""
        return own

    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Return the weights of each block's MLP, in the order in which they are applied."""
        return {block: tuple(name for name, _ in maps) for block, maps in self._mlps().items()}

    @contextmanager
    def blending(self, blend: Blend) -> Iterator[None]:
        """In the block, add the results of `blend` to the outputs of MLPs' linear maps; differentiable.

        `blend` takes a block's name, its MLP's input (B, N, in) and a mask of tokens without padding (B, N). It
        returns a function of a linear map's name and input (B, N, in), which returns the addition (B, N, out)
        or None.
        """
        inputs: dict[str, Tensor] = {}

        def begun(_: Module, args: Any, kwargs: Any) -> None:
            inputs.clear()
            inputs.update(kwargs, **{f"{place}": each for place, each in enumerate(args)})

        handles = [self.module.register_forward_pre_hook(begun, with_kwargs=True)]
        try:
            for block, maps in self._mlps().items():
                hook = _adding(block, maps[0][0], blend, inputs)
                handles += [part.register_forward_hook(partial(hook, name)) for name, part in maps]
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _mlps(self) -> dict[str, list[tuple[str, Linear]]]:
        parts = {
            name: part
            for name, part in self.module.named_modules()
            if isinstance(part, Linear) and fnmatchcase(name, self.reads)
        }
        blocks = {}
        for ends in self.mlps:
            for name in parts:
                block = name.removesuffix(f".{ends[0]}")
                if block != name and f"{block}.{ends[1]}" in parts:
                    maps = [f"{block}.{end}" for end in ends]
                    named = [(self.stored_name(f"{each}.weight"), parts[each]) for each in maps]
                    blocks[self._block_of(named[0][0])] = named
        if not blocks:
            shown = " or ".join(" and ".join(ends) for ends in self.mlps)
            raise InputError(f"{type(self.module).__name__}: no block has an MLP of {shown}, so none is mixed")
        return blocks

    def _block_of(self, first: str) -> str:
        """Return a block's name, given the checkpoint's name of its MLP's first weight."""
        ends = [f".{each[0]}.weight" for each in self.mlps]
        return next((first.removesuffix(end) for end in ends if first.endswith(end)), first)


def _adding(
    block: str, first: str, blend: Blend, inputs: Mapping[str, Tensor]
) -> Callable[[str, Module, Any, Tensor], Tensor]:
    """Return the forward hook of a block's linear maps, which adds what `blend` makes of the first one's input.

    `first`: that map's name, as all are the hook's first argument. `inputs`: the network's own, if the whole network
    runs.
    """
    extra: Extra | None = None

    def hook(name: str, _: Module, args: Any, output: Tensor) -> Tensor:
        nonlocal extra
        rows = args[0].reshape(len(args[0]), -1, args[0].shape[-1])  # a grid's places are tokens too
        if name == first:
            extra = blend(block, rows, _tokens(block, rows, inputs))
        assert extra is not None
        more = extra(name, rows)
        return output if more is None else output + more.to(output.dtype).view(output.shape)

    return hook


def _tokens(block: str, rows: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Mark each example's tokens without padding, which some networks append: (B, N)."""
    whole, mask = torch.ones(rows.shape[:2], device=rows.device), inputs.get("attention_mask")
    examples = next((len(each) for each in inputs.values() if isinstance(each, Tensor)), len(rows))
    if len(rows) != examples or (mask is not None and mask.shape[1] > rows.shape[1]):
        tokens = f"{len(rows)} x {rows.shape[1]} tokens of {examples} examples"
        fix = "no example is routed by its own tokens; learned.*.learner: choose another"
        raise InputError(f"{block}: its MLP is applied to {tokens}, so {fix}")
    return whole if mask is None else pad(mask.to(whole), (0, rows.shape[1] - mask.shape[1]))
