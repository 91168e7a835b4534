"""Open a checkpoint of any kind as lazy named tensors.

A checkpoint is a safetensors file, a folder with one, a folder of shards with their index, or torch weights
(loaded with `weights_only`). Names, shapes and dtypes come from the first bytes; a tensor is read when asked for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from merganser.checkpoints.safetensors_file import HEADER_LIMIT, SafetensorsFile
from merganser.checkpoints.tensors import DTYPES, NAMES_OF_DTYPES, Spec, spec_of
from merganser.errors import InputError
from merganser.limits import check_plain, parse_json, read_small

SINGLE_FILES = ("model.safetensors", "open_clip_model.safetensors")
TORCH_FILES = ("pytorch_model.bin", "open_clip_pytorch_model.bin")
TORCH_SUFFIXES = (".bin", ".pt", ".pth")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
CONFIG_SUFFIXES = (".json", ".txt", ".model")  # never .py: nothing that came with a checkpoint is run
DESCRIPTION = "source.json"  # where a fetched checkpoint came from


@dataclass(frozen=True)
class ShardedCheckpoint:
    """Safetensors shards named by an index."""

    shards: Mapping[str, SafetensorsFile]  # by tensor name

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""
        return tuple(sorted(self.shards))

    def __contains__(self, name: str) -> bool:
        return name in self.shards

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        return self.shards[name].spec(name)

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.shards[name].read(name)


@dataclass(frozen=True)
class TorchCheckpoint:
    """Torch weights, memory-mapped."""

    tensors: Mapping[str, Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""
        return tuple(sorted(self.tensors))

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        return spec_of(self.tensors[name])

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.tensors[name]


class Checkpoint(Protocol):
    """Named tensors, read one at a time; names, shapes and dtypes are known without reading them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a tensor of this name."""

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""

    def read(self, name: str) -> Tensor:
        """Read one tensor."""


def read_into(values: Tensor, checkpoint: Checkpoint, name: str) -> None:
    """Read a tensor to where it is wanted, in any dtype and shape; straight from the file where it is stored so."""
    file = checkpoint.shards[name] if isinstance(checkpoint, ShardedCheckpoint) else checkpoint
    if isinstance(file, SafetensorsFile) and DTYPES[file.spec(name).dtype] == values.dtype and values.is_contiguous():
        file.fill(values, name)
    else:
        values.copy_(checkpoint.read(name).reshape(values.shape))


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint folder or file; raise InputError when it is missing, truncated or of no known kind."""
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such checkpoint; give a checkpoint folder or a safetensors file")
    for name in SINGLE_FILES:
        if (path / name).is_file():
            return SafetensorsFile(path / name)
    indices = sorted(path.glob("*.safetensors.index.json"))
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


def config_names(names: Iterable[str]) -> list[str]:
    """Pick the small files beside the weights, configuration and tokenizer, from the names in a checkpoint's folder."""
    others = (".index.json", DESCRIPTION)
    return [name for name in sorted(names) if name.endswith(CONFIG_SUFFIXES) and not name.endswith(others)]


def is_index(path: Path) -> bool:
    """Tell whether a file is the index of a sharded checkpoint."""
    return path.name.endswith(".index.json")


def _open_file(path: Path) -> Checkpoint:
    if path.suffix in TORCH_SUFFIXES:
        return _open_torch(path)
    return _open_shards(path) if is_index(path) else SafetensorsFile(path)


def _open_shards(index: Path) -> ShardedCheckpoint:
    try:
        names: dict[str, str] = parse_json(read_small(index, HEADER_LIMIT))["weight_map"]
        files = sorted(set(names.values()))
        for file in files:
            check_plain(file, index)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: not an index of safetensors shards ({error}); fetch it again") from error
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise InputError(f"{index}: the shard {missing[0]} is missing; fetch it again")
    shards = {file: SafetensorsFile(index.parent / file) for file in files}
    absent = sorted(name for name, file in names.items() if name not in shards[file])
    if absent:
        raise InputError(f"{index}: {absent[0]} is not in its shard {names[absent[0]]}; fetch it again")
    return ShardedCheckpoint({name: shards[file] for name, file in names.items()})


def _open_torch(path: Path) -> TorchCheckpoint:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises a dozen kinds, all of them mean the same to a user
        raise InputError(
            f"{path}: cannot be loaded as plain weights ({type(error).__name__}); convert it to safetensors"
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    named = state.items() if isinstance(state, dict) else ()
    tensors = {name: value for name, value in named if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path}: holds no named tensors; save the model's state_dict")
    strange = [name for name, value in tensors.items() if not _is_plain(name, value)]
    if strange:
        raise InputError(f"{path}: {strange[0]!r} is no plain tensor under a name; save the model's state_dict")
    return TorchCheckpoint(tensors)


def _is_plain(name: Any, tensor: Tensor) -> bool:
    """Tell whether a tensor is one that safetensors could hold, and no view of fewer values than it announces."""
    if not isinstance(name, str) or tensor.layout is not torch.strided or tensor.dtype not in NAMES_OF_DTYPES:
        return False
    held = tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.itemsize
    return held and not (tensor.is_quantized or tensor.is_neg())
