"""Stop building a model that is larger than its checkpoint: the configuration comes from the same stranger."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules import module as torch_module

VALUES_A_BYTE, SPARE_VALUES = 4, 2**27  # a value has a byte at least; tied weights and a new head come on top
MODULES_A_TENSOR, SPARE_MODULES = 16, 10_000  # blocks, activations and the like have no tensors of their own
MOST_MODULES = 500_000


class TooLargeError(Exception):
    """The model being built is larger than its checkpoint."""


@contextmanager
def bounded(nbytes: int = 0, tensors: int | None = None) -> Iterator[None]:
    """Raise TooLargeError if the block builds more values or modules than its checkpoint can hold.

    `nbytes`, `tensors`: the checkpoint's, if they are known.
    """
    most_values = VALUES_A_BYTE * nbytes + SPARE_VALUES
    most_modules = MOST_MODULES if tensors is None else MODULES_A_TENSOR * tensors + SPARE_MODULES
    values = modules = 0

    def count_module(*_: Any) -> None:
        nonlocal modules
        modules += 1
        if modules > most_modules:
            raise TooLargeError(f"it has more than {most_modules} modules, more than its checkpoint can have")

    def count_values(_module: Any, _name: str, tensor: Any) -> None:
        nonlocal values
        values += 0 if tensor is None else tensor.numel()
        if nbytes and values > most_values:
            raise TooLargeError(f"it has more than {most_values} values, and its checkpoint {nbytes} bytes")

    hooks = [
        torch_module.register_module_module_registration_hook(count_module),
        torch_module.register_module_parameter_registration_hook(count_values),
        torch_module.register_module_buffer_registration_hook(count_values),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
