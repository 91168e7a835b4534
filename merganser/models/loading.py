"""Give a module the parameters of a checkpoint, all of them and no others."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module

from merganser.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # by `evaluation.precision`


def load_strictly(module: Module, parameters: Iterable[tuple[str, Tensor]], where: str, config: str) -> None:
    """Copy parameters into a module one at a time, so that they are never all in memory beside it.

    Raises InputError naming one that is missing, strange or misshapen; `where` the checkpoint is, and the name of the
    configuration that the module was built from.
    """
    state = module.state_dict()
    missing = set(state)
    for name, value in parameters:
        if name not in state:
            raise InputError(f"{where}: parameter {name} is not in the architecture of {config}")
        if value.shape != state[name].shape:
            raise InputError(f"{where}: {name} has shape {list(value.shape)}, {config} says {list(state[name].shape)}")
        state[name].copy_(value)
        missing.discard(name)
    if missing:
        raise InputError(f"{where}: parameter {sorted(missing)[0]} of the architecture is missing in the checkpoint")
