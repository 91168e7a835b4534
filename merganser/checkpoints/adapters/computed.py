"""Which of an adapter's tensors PEFT computes with, and which parameters it changes by them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.adapters.by_peft import ROOT, ByPeft
from merganser.checkpoints.adapters.peft_settings import PeftKind
from merganser.errors import InputError

INSIDE = ".base_layer"  # of a module that PEFT has put something around


@dataclass(frozen=True)
class Computed:
    """A parameter of a module, by the names that it has where the adapter was trained, or one matrix of a stack."""

    module: str
    parameter: str
    place: int | None = None
    optional: bool = False  # a module need not have it

    def of(self, peft: ByPeft, transposed: bool) -> Tensor:
        """Return what is added to the base's, the way round that the base is shown."""
        delta = peft.delta(self.module, self.parameter)
        shown = delta if self.place is None else delta[self.place]
        return shown.mT.contiguous() if transposed else shown


def computed_of(
    path: Path, kind: PeftKind, names: Sequence[str], wrapped_alone: bool
) -> tuple[dict[str, Computed], dict[str, str]]:
    """Return the parameters that PEFT computes, and the tensors that it computes them with, by their modules.

    `wrapped_alone`: of low-rank updates those that are put on parameters; the others are read as they are.
    """
    found: dict[str, Computed] = {}
    keys: dict[str, str] = {}
    pattern = re.compile(rf"(?P<module>.+?)(\{INSIDE})*\.{re.escape(kind.prefix)}.+")
    for key in names:
        match = pattern.fullmatch(key.removeprefix(ROOT)) if key.startswith(ROOT) else None
        if match is None:
            keys |= {} if key.startswith(ROOT) else {key: ""}
            continue
        module = match["module"]
        wrapped = kind.wrapping.parameters(module)
        if wrapped_alone and not wrapped:
            continue
        _check(path, kind, module, bool(wrapped))
        keys[key] = module
        for own in wrapped or kind.parameters:
            found[f"{module}.{own}"] = Computed(module, own, optional=bool(wrapped) or own != kind.parameters[0])
    if not found and not wrapped_alone:
        raise InputError(f"{path}: none of its tensors is of a layer; {kind.remedy}")
    kind.check_targets(path, {each.module for each in found.values() if not kind.wrapping.parameters(each.module)})
    return found, keys


def _check(path: Path, kind: PeftKind, module: str, is_wrapped: bool) -> None:
    """Raise InputError for a module that PEFT would not put the adapter on."""
    if is_wrapped and kind.wrapping.is_listed(module):
        raise InputError(f"{path}: target_modules and target_parameters both name {module}, which PEFT refuses")
    if f"{INSIDE}." in module:
        attention = f"{module.split(INSIDE)[0]} is an nn.MultiheadAttention"
        raise InputError(f"{path}: {attention}, of which only plain low-rank updates are read; {kind.remedy}")
