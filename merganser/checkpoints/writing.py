"""Write checkpoints as safetensors: streamed, one tensor in memory at a time, complete or not at all, in shards.

A merged model has the base's dtypes and shards, unless an `OutputFormat` says otherwise.
"""

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.kinds import FLOATS
from merganser.checkpoints.reading import shard_names, written_as
from merganser.checkpoints.tensors import (
    DTYPES,
    IN_MODULE,
    NAMES_OF_DTYPES,
    Checkpoint,
    Part,
    Spec,
    name_in_file,
    spec_of,
    to_bytes,
)
from merganser.checkpoints.views import stored_specs
from merganser.checkpoints.weight_files import MODEL
from merganser.errors import InputError
from merganser.outputs import replacing

Tensors = Iterable[tuple[Part, Tensor]]  # whole, or all their rows in pieces
PYTORCH = {"format": "pt"}  # transformers before version 5 refuses a file that does not say so


def write_checkpoint(path: Path, specs: Mapping[str, Spec], tensors: Tensors, metadata: str | None = None) -> None:
    """Stream tensors into a new safetensors file, one in memory at a time, in any order.

    `metadata` goes into the header under the key `merganser`. The file gets its name when it is complete and on disk.
    """
    _stream({path: specs}, tensors, {} if metadata is None else {"merganser": metadata})


def write_single(path: Path, specs: Mapping[str, Spec], tensors: Tensors) -> None:
    """Stream a model into one file as `transformers` reads it."""
    _stream({path: specs}, tensors, PYTORCH)


def write_model(
    folder: Path, specs: Mapping[str, Spec], tensors: Tensors, files: Mapping[str, str], stem: str = MODEL
) -> None:
    """Stream a model into a folder with the file names of its reader, one tensor in memory at a time, in any order.

    `files`: the shard of each tensor; None for one file. `stem`: the files' name without suffix. A module's tensors
    go into a file in its folder. The index is written after all shards.
    """
    shards: dict[Path, dict[str, Spec]] = {}
    for name in sorted(specs):
        module, inside, _ = name.partition(IN_MODULE)
        own = files[name] if files and not inside else f"{stem}.safetensors"
        path = folder / module / f"{MODEL}.safetensors" if inside else folder / own
        path.parent.mkdir(exist_ok=True)
        shards.setdefault(path, {})[name] = specs[name]
    _stream(shards, tensors, PYTORCH)
    if not files:
        return
    mapped = {name: files[name] for name in sorted(specs) if IN_MODULE not in name}
    index = {"metadata": {"total_size": sum(specs[name].nbytes for name in mapped)}, "weight_map": mapped}
    with replacing(folder / f"{stem}.safetensors.index.json") as file:
        file.write((json.dumps(index, indent=2) + "\n").encode())


def _stream(files: Mapping[Path, Mapping[str, Spec]], tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write each tensor to its place in its file; the files get their names when all are complete."""
    places: dict[str, tuple[BinaryIO, int, Spec]] = {}
    left = {name: spec.nbytes for specs in files.values() for name, spec in specs.items()}
    with ExitStack() as stack:
        for path, specs in files.items():
            order = sorted(specs, key=lambda name: (-DTYPES[specs[name].dtype].itemsize, name))  # the format's own
            named = {name: name_in_file(name) for name in order}
            header, offsets = layout({named[name]: specs[name] for name in order}, metadata, list(named.values()))
            file = stack.enter_context(replacing(path))
            file.write(header)
            places |= {name: (file, len(header) + offsets[named[name]], specs[name]) for name in specs}
        for part, tensor in tensors:
            name, rows = (part, None) if isinstance(part, str) else (part.name, part)
            file, start, whole = places[name]
            spec = rows.spec(whole) if rows else whole
            if spec_of(tensor) != spec:
                raise ValueError(f"{part}: announced as {spec}, got {spec_of(tensor)}")
            file.seek(start + (rows.first(whole) * tensor.itemsize if rows else 0))
            file.write(to_bytes(tensor))
            left[name] -= spec.nbytes
        if wrong := sorted(name for name, size in left.items() if size):
            raise ValueError(f"{next(iter(files))}: {wrong[0]} was announced and never written, or not once")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: str | None = None) -> None:
    """Write tensors in memory as one safetensors file."""
    write_checkpoint(path, {name: spec_of(t) for name, t in tensors.items()}, tensors.items(), metadata)


def layout(
    specs: Mapping[str, Spec], metadata: Mapping[str, str], order: Sequence[str]
) -> tuple[bytes, dict[str, int]]:
    """Build the header of a safetensors file with tensors in this order; return it and each tensor's offset.

    The order must have descending alignment, since readers view tensors in place.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets, position = {}, 0
    for name in order:
        spec = specs[name]
        offsets[name], end = position, position + spec.nbytes
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offsets


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) *([KMGT]I?)?B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a size such as 5GB or 500MiB in bytes; raise InputError for anything else."""
    match = SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * UNITS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise InputError(f"--max-shard-size: expected a size such as 5GB or 500MB, got {text!r}")
    return size


def shards_like(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the safetensors shard of each tensor as in a checkpoint; empty for a single file."""
    files = shard_names(checkpoint) or {}
    used = sorted(set(files.values()))
    if len(used) < 2:
        return {}
    stem = written_as(checkpoint)
    return {name: _shard(stem, used.index(file) + 1, len(used)) for name, file in files.items()}


def shards_of(specs: Mapping[str, Spec], size: int, stem: str = MODEL) -> dict[str, str]:
    """Divide tensors by name into shards of at most `size` bytes; empty if one file is enough.

    A larger tensor has a shard to itself.
    """
    numbers: dict[str, int] = {}
    number, held = 1, 0
    for name in sorted(name for name in specs if IN_MODULE not in name):
        if held and held + specs[name].nbytes > size:
            number, held = number + 1, 0
        numbers[name], held = number, held + specs[name].nbytes
    return {name: _shard(stem, n, number) for name, n in numbers.items()} if number > 1 else {}


def _shard(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}.safetensors"


Dtype = Literal["float32", "float16", "bfloat16"]
TORCH: Mapping[Dtype, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CONFIG_KEYS = ("dtype", "torch_dtype")  # transformers' from version 5 on, and before


@dataclass(frozen=True)
class OutputFormat:
    """The dtype of all floating-point parameters, and the bytes per file; by default the base's."""

    dtype: Dtype | None = None
    max_shard_size: int | None = None

    def specs(self, base: Checkpoint) -> dict[str, Spec]:
        """Return the written dtype and shape of each of a base's parameters, in the layout of its file."""
        return {
            name: Spec(NAMES_OF_DTYPES[self.dtype_of(spec.dtype)], spec.shape)
            for name, spec in stored_specs(base).items()
        }

    def shards(self, base: Checkpoint) -> dict[str, str]:
        """Name the shard of each tensor; empty for a single file."""
        if not self.max_shard_size:
            return shards_like(base)
        return shards_of(self.specs(base), self.max_shard_size, written_as(base))

    def dtype_of(self, stored: str) -> torch.dtype:
        """Return the written dtype for a stored one."""
        return TORCH[self.dtype] if self.dtype and stored in FLOATS else DTYPES[stored]

    def held(self, name: str, values: Tensor, stored: str) -> Tensor:
        """Convert values to the written dtype; raise InputError if it cannot represent them."""
        written = values.to(self.dtype_of(stored))
        if written.dtype == torch.float16 and not written.isfinite().all():  # bfloat16 has float32's range
            remedy = "write the merge in a wider dtype (merganser merge --dtype bfloat16 or float32), or scale it down"
            raise InputError(f"{name}: has values beyond float16's largest, 65504; {remedy}")
        return written

    def declare(self, folder: Path) -> None:
        """Write the dtype into a model's configuration if that has one."""
        config = read_config(folder / CONFIG) if self.dtype else None
        if config is None:
            return
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            part.update({key: self.dtype for key in CONFIG_KEYS if isinstance(part.get(key), str)})
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


AS_THE_BASE = OutputFormat()
