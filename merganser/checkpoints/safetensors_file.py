"""Read a safetensors file: the header, checked against the file's size, and each tensor when it is read."""

import struct
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from merganser.checkpoints.tensors import DTYPES, Spec, StoredCheckpoint, to_bytes
from merganser.checkpoints.wrappers import unwrapped, wrappers_in
from merganser.errors import InputError, refusing
from merganser.limits import check_file, parse_json

HEADER_LIMIT = 2**25  # bytes: of names, shapes and places, for a file of 250,000 tensors
NAME_LIMIT = 200  # characters, as a file's name would have them: a parameter's factors have a file of its name
LFS_POINTER = b"version https://git-lfs"  # what a clone without git-lfs has in a large file's place
GGUF = b"GGUF"
DIMENSIONS, ENTRIES = 16, 2**48  # of a tensor, at most: numbers beyond make torch itself fail


class SafetensorsFile(StoredCheckpoint):
    """One safetensors file; opening it reads the header only and checks it against the file's size.

    Tensors are read into memory of their own: a mapped file would count as memory used, page by page.
    """

    def __init__(self, path: Path) -> None:
        header, self._start = read_header(path)
        self.path = path
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self.wrappers, header = wrappers_in(header), unwrapped(header, path)
        self._specs = {name: Spec(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        self._offsets = {name: entry["data_offsets"][0] for name, entry in header.items()}

    @property
    def specs(self) -> dict[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""
        return self._specs

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


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read and check a safetensors header, and where the values begin; raise InputError when the file is not whole."""
    check_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise InputError(f"{path}: a pointer of git-lfs, not the file itself; run `git lfs pull` in its repository")
        file.seek(0)
        if file.read(len(GGUF)) == GGUF:
            raise InputError(
                f"{path}: a GGUF file, of llama.cpp; give the model it was made from, or a copy in safetensors: "
                f"merganser merge average --model copy={path} --out DIR writes one, dequantised"
            )
        file.seek(0)
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else 0
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise InputError(f"{path}: not a safetensors file, or cut off within its header; fetch it again")
        with refusing(f"{path}: the safetensors header is corrupt", "fetch it again"):
            header = parse_json(file.read(length))
            _refuse_quantised(path, header)
            end = _checked_end(header)
    expected = 8 + length + end
    if size != expected:
        raise InputError(f"{path}: truncated or corrupt: {size} bytes, its header announces {expected}; fetch it again")
    return header, 8 + length


def _refuse_quantised(path: Path, header: dict[str, Any]) -> None:
    for name, entry in header.items():
        if str(entry.get("dtype")).startswith(("F8_", "F6_", "F4")):
            raise InputError(
                f"{path}: {name} is quantised, stored as {entry['dtype']}; take the model it was made from"
            )


def _checked_end(header: dict[str, Any]) -> int:
    """Check all that a header says, and that the tensors lie side by side; return where the last one ends."""
    metadata = header.get("__metadata__", {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata is not a map of texts")
    end = 0
    for start, stop, name in sorted(_checked_span(*item) for item in header.items() if item[0] != "__metadata__"):
        if start != end:
            raise ValueError(f"{name} begins at {start}, where {end} is due: tensors neither overlap nor leave gaps")
        end = stop
    return end


def _checked_span(name: str, entry: dict[str, Any]) -> tuple[int, int, str]:
    if not name.isprintable() or not 0 < len(quote(name, safe="")) <= NAME_LIMIT:
        raise ValueError(f"{name[:NAME_LIMIT]!r} is not a name for a tensor")
    (start, end), shape = entry["data_offsets"], entry["shape"]
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the unsupported dtype {entry['dtype']}")
    if any(type(n) is not int or n < 0 for n in (start, end, *shape)):
        raise ValueError(f"{name} has a shape or offset that is not a count")
    if len(shape) > DIMENSIONS or prod(max(n, 1) for n in shape) > ENTRIES:
        raise ValueError(f"{name} has a shape that no tensor has")
    if end - start != Spec(entry["dtype"], tuple(shape)).nbytes:
        raise ValueError(f"{name} has {end - start} bytes for shape {shape} of {entry['dtype']}")
    return start, end, name
