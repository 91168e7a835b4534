"""Watch what a network's linear maps are applied to, whatever its modules are called and built of."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import unfold
from torch.utils._python_dispatch import TorchDispatchMode

from merganser.models import Extra

_aten = torch.ops.aten
# Where an operation has its rows, and the matrix that they are multiplied by.
_PRODUCTS = {_aten.mm.default: (0, 1), _aten.addmm.default: (1, 2), _aten.bmm.default: (0, 1)}


class _Watch(TorchDispatchMode):
    """Find weights by where their values lie: a transposed one lies there too."""

    def __init__(self, names: dict[int, str], extra: Extra) -> None:
        super().__init__()
        self.names, self.extra = names, extra

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            rows, weight = (args[place] for place in _PRODUCTS[func])
            more = self._seen(weight, lambda: rows.reshape(-1, rows.shape[-1]))
            found = func(*args, **(kwargs or {}))
            return found if more is None else found + more.view(found.shape).to(found.dtype)
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
    """Cut images into what a kernel is multiplied by: (N, in * height * width); one number is of both sides."""
    of_sides = (2 // len(values) * tuple(values) for values in (dilation, padding, stride))
    cut = unfold(images, kernel.shape[2:], *of_sides)
    return cut.transpose(1, 2).reshape(-1, cut.shape[1])


class Watcher:
    """Knows where weights lie while they are watched: a module's own, and those given in their place."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    @contextmanager
    def watch(self, weights: Mapping[str, Tensor], extra: Extra) -> Iterator[None]:
        """Add what `extra` makes of a named weight's input rows (N, in) to its output (N, out), convolutions' apart.

        Attention is computed step by step meanwhile: in one piece its maps would not be seen.
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
        """Know these values of named weights while the block runs."""
        places = {weight.data_ptr(): name for name, weight in weights.items()}
        before = {place: self._names[place] for place in places if place in self._names}
        self._names |= places
        try:
            yield
        finally:
            for place in places:
                del self._names[place]
            self._names |= before
