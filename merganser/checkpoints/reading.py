"""Open a checkpoint of any kind as lazy named tensors.

A checkpoint is a safetensors file, a folder with one, a folder of shards with their index, or torch weights
(loaded with `weights_only`). Names, shapes and dtypes come from the first bytes; a tensor is read when asked for.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.limits import check_plain, parse_json, read_small

HEADER_LIMIT = 2**25  # bytes: of names, shapes and places, for a file of 250,000 tensors
NAME_LIMIT = 200  # characters, as a file's name would have them: a parameter's factors have a file of its name
DIMENSIONS, ENTRIES = 16, 2**48  # of a tensor, at most: numbers beyond make torch itself fail
SINGLE_FILES = ("model.safetensors", "open_clip_model.safetensors")
TORCH_FILES = ("pytorch_model.bin", "open_clip_pytorch_model.bin")
TORCH_SUFFIXES = (".bin", ".pt", ".pth")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
CONFIG_SUFFIXES = (".json", ".txt", ".model")  # never .py: nothing that came with a checkpoint is run
DESCRIPTION = "source.json"  # where a fetched checkpoint came from
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Spec:
    """A tensor's dtype (as safetensors spells it) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def spec_of(tensor: Tensor) -> Spec:
    """Describe a tensor."""
    return Spec(NAMES_OF_DTYPES[tensor.dtype], tuple(tensor.shape))


@dataclass
class SafetensorsFile:
    """One safetensors file; opening it reads the header only and checks it against the file's size."""

    path: Path
    specs: dict[str, Spec] = field(init=False)
    metadata: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        header, self._start = read_header(self.path)
        self.metadata = header.pop("__metadata__", {})
        self.specs = {name: Spec(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        self._offsets = {name: entry["data_offsets"][0] for name, entry in header.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""
        return tuple(sorted(self.specs))

    def __contains__(self, name: str) -> bool:
        return name in self.specs

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        return self.specs[name]

    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own: a mapped file would count as memory used, page by page."""
        return self.read_piece(name, 0, self.specs[name].shape)

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape out of one stored flat, from the value at `start` on."""
        values = torch.empty(shape, dtype=DTYPES[self.specs[name].dtype])
        self.fill(values, name, start)
        return values

    def fill(self, values: Tensor, name: str, start: int = 0) -> None:
        """Read a stored tensor into a contiguous one of its dtype, from the value at `start` on."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start + self._offsets[name] + start * values.itemsize)
            left = to_bytes(values)
            while len(left):  # one read gives 2 GiB at most
                count = file.readinto(left)
                if not count:
                    raise InputError(f"{self.path}: ends within {name}; fetch it again")
                left = left[count:]


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


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read and check a safetensors header, and where the values begin; raise InputError when the file is not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else 0
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise InputError(f"{path}: not a safetensors file, or cut off within its header; fetch it again")
        try:
            header = parse_json(file.read(length))
            end = _checked_end(header)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: the safetensors header is corrupt ({error}); fetch it again") from error
    expected = 8 + length + end
    if size != expected:
        raise InputError(f"{path}: truncated or corrupt: {size} bytes, its header announces {expected}; fetch it again")
    return header, 8 + length


def _checked_end(header: dict[str, Any]) -> int:
    """Check all that a header says, and that the tensors lie side by side; return where the last one ends."""
    metadata = header.get("__metadata__", {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata is no map of texts")
    end = 0
    for start, stop, name in sorted(_checked_span(*item) for item in header.items() if item[0] != "__metadata__"):
        if start != end:
            raise ValueError(f"{name} begins at {start}, where {end} is due: tensors neither overlap nor leave gaps")
        end = stop
    return end


def _checked_span(name: str, entry: dict[str, Any]) -> tuple[int, int, str]:
    if not name.isprintable() or not 0 < len(quote(name, safe="")) <= NAME_LIMIT:
        raise ValueError(f"{name[:NAME_LIMIT]!r} is no name for a tensor")
    (start, end), shape = entry["data_offsets"], entry["shape"]
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the unsupported dtype {entry['dtype']}")
    if any(type(n) is not int or n < 0 for n in (start, end, *shape)):
        raise ValueError(f"{name} has a shape or offset that is no count")
    if len(shape) > DIMENSIONS or prod(max(n, 1) for n in shape) > ENTRIES:
        raise ValueError(f"{name} has a shape that no tensor has")
    if end - start != Spec(entry["dtype"], tuple(shape)).nbytes:
        raise ValueError(f"{name} has {end - start} bytes for shape {shape} of {entry['dtype']}")
    return start, end, name


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


def to_bytes(tensor: Tensor) -> memoryview:
    """View a tensor's values as bytes: its own memory, where it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
