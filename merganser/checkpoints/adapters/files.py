"""An adapter's tensors, and what each is to the model it was trained on.

Shape legend: M rows, N columns, Q rank of the adapter.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.adapters.settings import REMEDY, Settings, read_settings
from merganser.checkpoints.reading import ADAPTER_CONFIG, ADAPTER_FILES, Checkpoint, open_checkpoint
from merganser.errors import InputError

MODEL = "base_model.model."  # what PEFT puts before the model's own names
LINEAR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.[^.]+)?\.(?P<field>weight|bias)")
EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<side>[AB])(\.[^.]+)?")
WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")  # the module inside that which PEFT put around it
UNTRAINED = ".original_module."  # what it was before it was trained whole, saved too where embeddings were resized


@dataclass(frozen=True)
class Update:
    """What an adapter does to one parameter, by the names of its tensors; what there is of the three adds up."""

    whole: str | None = None  # takes the place of the base's values
    factors: tuple[str, str] | None = None  # B (M, Q) and A (Q, N): scale * B @ A is added
    added: str | None = None  # scale * this is added
    scale: float = 1.0
    transposed: bool = False  # the parameter is (N, M)
    whole_transposed: bool = False  # `whole` is stored the other way round


@dataclass(frozen=True)
class Adapter:
    """An adapter and its updates: by the names of the model it was trained on, or once bound by those of the base."""

    path: Path
    tensors: Checkpoint
    updates: Mapping[str, Update]

    def is_low_rank(self, name: str) -> bool:
        """Tell whether an update is a product of two factors and nothing else."""
        update = self.updates[name]
        return update.factors is not None and update.whole is None

    def shapes(self, name: str) -> set[tuple[int, ...]]:
        """Return the shapes that an update is for: one, unless its tensors disagree."""
        update = self.updates[name]
        shapes = {self.tensors.spec(key).shape for key in (update.whole, update.added) if key}
        if update.factors is None:
            return shapes
        b, a = (self.tensors.spec(key).shape for key in update.factors)
        return shapes | {(a[1], b[0]) if update.transposed else (b[0], *a[1:])}

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """Read a low-rank update's factors in float32: left (M, Q), the scale in it, and right (Q, N)."""
        update = self.updates[name]
        b, a = (self.tensors.read(key).to(torch.float32).flatten(1) for key in update.factors or ())
        return (a.mT, update.scale * b.mT) if update.transposed else (update.scale * b, a)

    def delta(self, name: str, weights: Tensor) -> Tensor:
        """Return what an update adds to the base's weights of a parameter, in float32 and their shape."""
        update, delta = self.updates[name], torch.zeros(weights.shape)
        if update.whole is not None:
            whole = self.tensors.read(update.whole).to(torch.float32)
            delta += (whole.mT if update.whole_transposed else whole) - weights.to(torch.float32)
        if update.factors is not None:
            left, right = self.factors(name)
            delta += (left @ right).reshape(weights.shape)
        if update.added is not None:
            delta += update.scale * self.tensors.read(update.added).to(torch.float32)
        return delta


def adapter_names(names: Collection[str]) -> list[str]:
    """Pick an adapter's files from the names in a folder, configuration and tensors; none where there is no adapter."""
    tensors = [name for name in ADAPTER_FILES if name in names]
    return [ADAPTER_CONFIG, tensors[0]] if ADAPTER_CONFIG in names and tensors else []


def open_model(path: Path, modules: Sequence[str] = ()) -> Checkpoint | Adapter:
    """Open a task's model: a checkpoint, and some of the modules in its folder, or an adapter's folder.

    Raises InputError for what cannot be read as either.
    """
    if path.name in ADAPTER_FILES:
        raise InputError(f"{path}: an adapter's tensors alone; give its folder, with {ADAPTER_CONFIG} in it")
    names = adapter_names([file.name for file in path.iterdir()]) if path.is_dir() else []
    if not names:
        return open_checkpoint(path, modules)
    tensors = open_checkpoint(path / names[1])
    return Adapter(path, tensors, _updates(path, tensors, read_settings(path / names[0])))


def _updates(path: Path, tensors: Checkpoint, settings: Settings) -> dict[str, Update]:
    """Find what each tensor is: half of a product, or a parameter's own values (modules_to_save, trained biases)."""
    updates: dict[str, Update] = {}
    sides: dict[str, dict[str, str]] = {}
    for key in (key for key in tensors.names if UNTRAINED not in key):
        own = key.removeprefix(MODEL)
        match = LINEAR.fullmatch(own) or EMBEDDING.fullmatch(own)
        if match is None and "lora_" in own:
            raise InputError(f"{path}: {key} is not part of a low-rank update that can be read; {REMEDY}")
        if match is None:
            updates[WRAPPED.sub("", own)] = Update(whole=key)
            continue
        side = match["side"] + ("bias" if match.groupdict().get("field") == "bias" else "")
        if sides.setdefault(match["module"], {}).setdefault(side, key) != key:
            raise InputError(f"{path}: {match['module']} has two updates; save one adapter at a time")
    for module, keys in sides.items():
        name, update = WRAPPED.sub("", module), _product(path, tensors, settings, module, keys)
        whole = updates.get(f"{name}.weight", Update()).whole
        updates[f"{name}.weight"] = replace(update, whole=whole)
        if "Bbias" in keys:
            whole = updates.get(f"{name}.bias", Update()).whole
            updates[f"{name}.bias"] = Update(whole=whole, added=keys["Bbias"], scale=update.scale)
    if not updates:
        raise InputError(f"{path}: an adapter without tensors; save it again")
    return updates


def _product(path: Path, tensors: Checkpoint, settings: Settings, module: str, keys: Mapping[str, str]) -> Update:
    """Put a module's factors together; raise InputError when they are not two, or of the wrong shapes."""
    missing = {"A", "B"} - keys.keys()
    if missing:
        raise InputError(f"{path}: {module} has no lora_{missing.pop()}; save the adapter again")
    (b, a), rank = (tensors.spec(keys[side]).shape for side in "BA"), settings.rank(module)
    if min(len(a), len(b)) < 2 or a[0] != rank or b[1] != rank or any(n != 1 for n in b[2:]):
        raise InputError(
            f"{path}: {module}: A of shape {list(a)} and B of shape {list(b)} make no update of rank {rank}; "
            f"if PEFT can load the adapter, {REMEDY}"
        )
    transposed = "lora_embedding_" in keys["A"] or (settings.fan_in_fan_out and len(a) == 2)
    return Update(factors=(keys["B"], keys["A"]), scale=settings.scale(module), transposed=transposed)
