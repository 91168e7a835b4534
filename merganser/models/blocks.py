"""The MLPs of a network's blocks, and what is added to their linear maps by what each example looks like there.

Shape legend: B examples, N tokens, D features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from merganser.errors import InputError
from merganser.models import Blend


class WithBlocks:
    """A base of networks whose blocks have MLPs of two linear layers, which `mlps` names by the ends of their names.

    Its family's `open_network` is annotated to return it.
    """

    module: Any
    reads = "*"  # the pattern of the parameters that a forward pass reads
    mlps: Sequence[tuple[str, str]] = ()

    def stored_name(self, own: str) -> str:
        """Return what the loaded checkpoint calls a parameter of the module."""
        return own

    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Name each block's MLP by the weights of its linear maps, in the order in which they are applied."""
        return {block: tuple(name for name, _ in maps) for block, maps in self._mlps().items()}

    @contextmanager
    def blending(self, blend: Blend) -> Iterator[None]:
        """While the block runs, add to the outputs of the blocks' MLPs' linear maps what `blend` makes; differentiable.

        It takes a block's name, what enters its MLP (B, N, in) and which tokens are not padding (B, N), and returns a
        function of a linear map's name and input (B, N, in) that gives what is added (B, N, out), None for nothing.
        """
        counted: dict[str, Tensor | None] = {"mask": None}

        def begun(_: Module, args: Any, kwargs: Any) -> None:
            counted["mask"] = kwargs.get("attention_mask")

        handles = [self.module.register_forward_pre_hook(begun, with_kwargs=True)]
        try:
            for block, maps in self._mlps().items():
                added = _Added(block, blend, counted)
                for name, part in maps:
                    handles.append(part.register_forward_hook(added.hook(name, first=name == maps[0][0])))
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
        found = {}
        for ends in self.mlps:
            for name in parts:
                block = name.removesuffix(f".{ends[0]}")
                if block != name and f"{block}.{ends[1]}" in parts:
                    maps = [f"{block}.{end}" for end in ends]
                    named = [(self.stored_name(f"{each}.weight"), parts[each]) for each in maps]
                    found[named[0][0].removesuffix(f".{ends[0]}.weight")] = named
        if not found:
            shown = " or ".join(" and ".join(ends) for ends in self.mlps)
            raise InputError(f"{type(self.module).__name__}: no block has an MLP of {shown}, so none is mixed")
        return found


class _Added:
    """What is added in one block, from the input of its MLP's first linear map on."""

    def __init__(self, block: str, blend: Blend, counted: Mapping[str, Tensor | None]) -> None:
        self.block, self.blend, self.counted = block, blend, counted
        self.extra: Callable[[str, Tensor], Tensor | None] | None = None

    def hook(self, name: str, first: bool) -> Callable[[Module, Any, Tensor], Tensor]:
        """Return the hook of one linear map."""

        def hook(_: Module, args: Any, output: Tensor) -> Tensor:
            rows = args[0]
            if first:
                self.extra = self.blend(self.block, rows, _tokens(rows, self.counted["mask"]))
            assert self.extra is not None
            more = self.extra(name, rows)
            return output if more is None else output + more.to(output.dtype)

        return hook


def _tokens(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Mark the tokens of each example that are not padding: (B, N)."""
    whole = torch.ones(rows.shape[:2], device=rows.device)
    return whole if mask is None or mask.shape != rows.shape[:2] else mask.to(rows.device, whole.dtype)
