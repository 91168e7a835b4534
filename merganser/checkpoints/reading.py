"""Open a checkpoint of any kind as lazy named tensors.

A checkpoint is a safetensors file, torch weights (loaded with `weights_only`), a folder with one of these, or a folder
of shards of either kind with their index. Names, shapes and dtypes come from the first bytes; a tensor is read when
asked for. What transformers stores twice, or stored once beside the parameters, is left out: see `surplus`.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.architecture import Architecture, architecture_of
from merganser.checkpoints.safetensors_file import HEADER_LIMIT, SafetensorsFile
from merganser.checkpoints.surplus import surplus_of
from merganser.checkpoints.tensors import (
    DTYPES,
    NAMES_OF_DTYPES,
    Checkpoint,
    Part,
    Spec,
    StoredCheckpoint,
    spec_of,
)
from merganser.checkpoints.views import View
from merganser.errors import InputError, refusing
from merganser.limits import check_file, check_files, check_plain, parse_json, read_small

SINGLE_FILES = ("model.safetensors", "open_clip_model.safetensors")
TORCH_FILES = ("pytorch_model.bin", "open_clip_pytorch_model.bin")
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # what training loops save parameters under
INDICES = ("*.safetensors.index.json", "*.bin.index.json")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
CHANGED = ".changed"  # behind a shard's name: a file of those of its tensors that were made anew (linked.py)
DESCRIPTION = "source.json"  # where a fetched checkpoint came from


@dataclass(frozen=True)
class TorchCheckpoint(StoredCheckpoint):
    """Torch weights, memory-mapped."""

    path: Path
    tensors: Mapping[str, Tensor]

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""
        return {name: spec_of(tensor) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.tensors[name]

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape out of one laid out flat, from the value at `start` on."""
        return self.tensors[name].flatten()[start : start + prod(shape)].view(shape)

    def memory(self, name: str) -> object:
        """Return where a tensor lies and how; the same for two names of one tied weight."""
        tensor = self.tensors[name]
        return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else None


@dataclass(frozen=True)
class ShardedCheckpoint(StoredCheckpoint):
    """Shards named by an index."""

    shards: Mapping[str, SafetensorsFile | TorchCheckpoint]  # by tensor name

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""
        return {name: shard.spec(name) for name, shard in self.shards.items()}

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.shards[name].read(name)

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape out of one stored flat, from the value at `start` on."""
        return self.shards[name].read_piece(name, start, shape)

    def memory(self, name: str) -> object:
        """Return what tells the memory of one tensor from that of others."""
        return self.shards[name].memory(name)


Stored = SafetensorsFile | TorchCheckpoint


def place_of(checkpoint: Checkpoint, name: str) -> tuple[Stored, str] | None:
    """Return the file that has a tensor as it is shown, and its name there; None for one that is made when it is read.

    Rows of what is in a file can be read alone.
    """
    if isinstance(checkpoint, View):
        is_made = name in checkpoint.transposed or name not in checkpoint.stored
        return None if is_made else place_of(checkpoint.inner, checkpoint.stored[name])
    if isinstance(checkpoint, ShardedCheckpoint):
        return checkpoint.shards[name], name
    return (checkpoint, name) if isinstance(checkpoint, Stored) else None


def read_part(checkpoint: Checkpoint, part: Part) -> Tensor:
    """Read one tensor, or some of its rows."""
    if isinstance(part, str):
        return checkpoint.read(part)
    place = place_of(checkpoint, part.name)
    assert place, f"{part.name} lies in no file as it is shown: it is read whole"
    file, stored = place
    whole = file.spec(stored)
    return file.read_piece(stored, part.first(whole), part.spec(whole).shape)


def read_into(values: Tensor, checkpoint: Checkpoint, part: Part) -> None:
    """Read a tensor, or some of its rows, in any dtype and shape; straight from the file where it is stored so."""
    name, rows = (part, None) if isinstance(part, str) else (part.name, part)
    file, stored = place_of(checkpoint, name) or (None, name)
    if isinstance(file, SafetensorsFile) and values.is_contiguous():
        whole = file.spec(stored)
        if DTYPES[whole.dtype] == values.dtype:
            file.fill(values, stored, rows.first(whole) if rows else 0)
            return
    values.copy_(read_part(checkpoint, part).reshape(values.shape))


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint folder or file; raise InputError when it is missing, truncated or of no known kind."""
    stored = open_stored(path)
    surplus = surplus_of(stored, architecture_of(path if path.is_dir() else path.parent))
    names = {name: name for name in stored.names if name not in surplus}
    return View(stored, names, dropped=surplus) if surplus else stored


def open_for_merging(path: Path) -> Checkpoint:
    """Open a checkpoint with every linear map as out x in, as methods take them; `as_stored` gives it back."""
    checkpoint, architecture = open_checkpoint(path), architecture_of(path if path.is_dir() else path.parent)
    swapped = {name for name in checkpoint.names if architecture.is_in_by_out(name, checkpoint.spec(name).shape)}
    if not swapped:
        return checkpoint
    return View(checkpoint, {name: name for name in checkpoint.names}, frozenset(swapped), checkpoint.dropped)


def architecture_beside(checkpoint: Checkpoint) -> Architecture:
    """Read what stands beside a checkpoint's file of its architecture; nothing of one that is in none."""
    if isinstance(checkpoint, View):
        return architecture_beside(checkpoint.inner)
    if isinstance(checkpoint, ShardedCheckpoint):
        return architecture_beside(next(iter(checkpoint.shards.values())))
    return architecture_of(checkpoint.path.parent) if isinstance(checkpoint, Stored) else Architecture()


def files_of(checkpoint: Checkpoint) -> dict[str, str] | None:
    """Return the name of the shard that holds each tensor; None for a checkpoint that is not a set of shards."""
    if isinstance(checkpoint, View):
        inner = files_of(checkpoint.inner)
        return inner and {name: inner[stored] for name, stored in checkpoint.stored.items()}
    if not isinstance(checkpoint, ShardedCheckpoint):
        return None
    return {name: shard.path.name.removesuffix(CHANGED) for name, shard in checkpoint.shards.items()}


def open_stored(path: Path) -> StoredCheckpoint:
    """Open a checkpoint folder or file with all that is in it."""
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint; give a checkpoint folder or a safetensors file")
    if not path.is_dir():
        check_file(path)
        return _open_shards(path) if is_index(path) else _open_file(path)
    check_files(path)
    for name in SINGLE_FILES:
        if (path / name).is_file():
            return SafetensorsFile(path / name)
    for pattern in INDICES:
        indices = sorted(path.glob(pattern))
        if indices:
            return _open_shards(indices[0])
    if any((path / name).is_file() for name in (ADAPTER_CONFIG, *ADAPTER_FILES)):
        raise InputError(
            f"{path}: an adapter, not a whole model; as a task's source it has {ADAPTER_CONFIG} and {ADAPTER_FILES[0]}"
        )
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return SafetensorsFile(files[0])
    for name in TORCH_FILES:
        if (path / name).is_file():
            return _open_torch(path / name)
    raise InputError(f"{path}: no checkpoint in this folder; expected one of {', '.join(SINGLE_FILES + TORCH_FILES)}")


def is_index(path: Path) -> bool:
    """Tell whether a file is the index of a sharded checkpoint."""
    return path.name.endswith(".index.json")


def _open_file(path: Path) -> SafetensorsFile | TorchCheckpoint:
    return _open_torch(path) if path.suffix in TORCH_SUFFIXES else SafetensorsFile(path)


def _open_shards(index: Path) -> ShardedCheckpoint:
    with refusing(f"{index}: not an index of shards", "fetch it again"):
        names: dict[str, str] = parse_json(read_small(index, HEADER_LIMIT))["weight_map"]
        files = sorted(set(names.values()))
        for file in files:
            check_plain(file, index)
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise InputError(f"{index}: the shard {missing[0]} is missing; fetch it again")
    shards = {file: _open_file(index.parent / file) for file in files}
    absent = sorted(name for name, file in names.items() if name not in shards[file])
    if absent:
        raise InputError(f"{index}: {absent[0]} is not in its shard {names[absent[0]]}; fetch it again")
    unnamed = {name: shard for shard in shards.values() for name in shard.names}  # whole shards are loaded
    return ShardedCheckpoint(unnamed | {name: shards[file] for name, file in names.items()})


def _open_torch(path: Path) -> TorchCheckpoint:
    check_file(path)
    try:
        # what torch before 1.6 wrote is no archive, and is read whole
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises a dozen kinds, all of them mean the same to a user
        raise InputError(
            f"{path}: cannot be loaded as plain weights ({type(error).__name__}); convert it to safetensors"
        ) from error
    whole = loaded if isinstance(loaded, dict) else {}
    named = next((whole[key] for key in WRAPPERS if isinstance(whole.get(key), dict)), whole).items()
    tensors = {name: value for name, value in named if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path}: holds no named tensors; save the model's state_dict")
    float8 = [name for name, value in tensors.items() if "float8" in str(value.dtype)]
    if float8:
        stored = f"stored as {tensors[float8[0]].dtype}; take the model it was made from"
        raise InputError(f"{path}: {float8[0]} is quantised, {stored}")
    strange = [name for name, value in tensors.items() if not _is_plain(name, value)]
    if strange:
        raise InputError(f"{path}: {strange[0]!r} is not a plain tensor under a name; save the model's state_dict")
    return TorchCheckpoint(path, tensors)


def _is_plain(name: Any, tensor: Tensor) -> bool:
    """Tell whether a tensor is one that safetensors could hold, and no view of fewer values than it announces."""
    if not isinstance(name, str) or tensor.layout is not torch.strided or tensor.dtype not in NAMES_OF_DTYPES:
        return False
    held = tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.itemsize
    return held and not (tensor.is_quantized or tensor.is_neg())
