"""Write checkpoints as safetensors: streamed, one tensor in memory at a time, whole or not at all."""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from merganser.checkpoints.tensors import DTYPES, Spec, spec_of, to_bytes


def write_checkpoint(
    path: Path, specs: Mapping[str, Spec], tensors: Iterable[tuple[str, Tensor]], metadata: str | None = None
) -> None:
    """Stream tensors into a new safetensors file, one in memory at a time, in any order.

    `metadata` goes into the header under the one key `merganser` (several keys have no fixed order in the format).
    The file appears under its name only when whole and on disk.
    """
    order = sorted(specs, key=lambda name: (-DTYPES[specs[name].dtype].itemsize, name))  # as the format's own writer
    header, offsets = layout(specs, metadata, order)
    with replacing(path) as file:
        file.write(header)
        start = file.tell()
        missing = set(specs)
        for name, tensor in tensors:
            if spec_of(tensor) != specs[name]:
                raise ValueError(f"{name}: announced as {specs[name]}, got {spec_of(tensor)}")
            file.seek(start + offsets[name])
            file.write(to_bytes(tensor))
            missing.remove(name)
        if missing:
            raise ValueError(f"{path}: {sorted(missing)[0]} was announced and never written")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: str | None = None) -> None:
    """Write tensors that are in memory anyway as one safetensors file."""
    write_checkpoint(path, {name: spec_of(t) for name, t in tensors.items()}, tensors.items(), metadata)


def layout(specs: Mapping[str, Spec], metadata: str | None, order: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Make the header of a safetensors file whose tensors follow in this order, and each tensor's offset.

    The order must have falling alignment: readers view a tensor in place.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": {"merganser": metadata}}
    offsets, position = {}, 0
    for name in order:
        spec = specs[name]
        offsets[name], end = position, position + spec.nbytes
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offsets


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes its name only when whole and synced; never write into an existing file."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
