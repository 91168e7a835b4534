"""Names that training put into those of a model: FSDP, activation checkpointing, torch.compile, Fabric, Opacus.

Each wraps a module into one of its own, whose name stays in what is saved: `layers.0._orig_mod.proj.weight`.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from merganser.errors import InputError

Value = TypeVar("Value")

# The names of private attributes, which no model has itself. `module`, that of DDP, some do: `matching` tries without,
# and only before what PEFT puts before a model's names it is none of the model's.
WRAPPER = re.compile(
    r"(?<![^.])(_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|_orig_mod|_forward_module|_module"
    r"|module(?=\.base_model\.model\.))\."
)
FLAT = re.compile(r"(.+\.)?_?flat_param(_\d+)?")  # the parameters of a module as FSDP holds them
MODULE = re.compile(r"(?<![^.])module\.")
SHARDED = (
    "parameters that FSDP flattened, whose shapes are not in the file; save the model with "
    "StateDictType.FULL_STATE_DICT (accelerate: fsdp_state_dict_type: FULL_STATE_DICT)"
)


def unwrapped(named: Mapping[str, Value], path: Path) -> dict[str, Value]:
    """Return what has names of a checkpoint's tensors by these names without the wrappers of training.

    Raises InputError where two names become one, and for parameters that are flattened.

    >>> unwrapped({"_orig_mod.layers.0._checkpoint_wrapped_module.weight": 1}, Path("model.safetensors"))
    {'layers.0.weight': 1}
    """
    found: dict[str, Value] = {}
    for name, value in named.items():
        if not isinstance(name, str):
            return dict(named)
        if "flat_param" in name and FLAT.fullmatch(name):
            raise InputError(f"{path}: {name}: {SHARDED}")
        plain = WRAPPER.sub("", name)
        if plain in found:
            wrapper = next(iter(wrappers_in(each for each in named if WRAPPER.sub("", each) == plain)))
            both = f"{plain} is there twice, once with {wrapper}, a wrapper of training, in its name"
            raise InputError(f"{path}: {both}; save the state_dict of the model without it")
        found[plain] = value
    return found


def wrappers_in(names: Iterable[str]) -> frozenset[str]:
    """Return the wrappers of training that are in some names.

    >>> wrappers_in(["_orig_mod.a.weight", "b.weight"])
    frozenset({'_orig_mod'})
    """
    return frozenset(wrapper for name in names for wrapper in WRAPPER.findall(name))


def without_ddp(name: str) -> str:
    """Return a name without DDP's wrapper, `module`, wherever it stands.

    >>> without_ddp("module.encoder.module.0.weight")
    'encoder.0.weight'
    """
    return MODULE.sub("", name)
