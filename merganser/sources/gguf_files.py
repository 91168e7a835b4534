"""Check a GGUF file before and after transformers reads it, since it trusts the file's counts and offsets."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from merganser.errors import MALFORMED, InputError, refusing

VERSIONS = (2, 3)
VALUES = 2**22  # in all arrays of the header: each becomes objects of some hundred bytes
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by the type of a value
CONSTANTS = ("rope_", ".attn_rot_embd", ".rope_freqs")  # in names of tensors that are computed, and not learned
AGAIN = "fetch it again"
OUTPUT = "output.weight"  # left out, or there again, in a model that ties it to the input


def check_gguf(file: Path) -> dict[str, int]:
    """Return the number of values of each tensor in a GGUF file; raise InputError if the file is cut off."""
    with refusing(f"{file}: not a whole GGUF file", AGAIN, (*MALFORMED, struct.error)):
        with file.open("rb") as opened:
            _check_header(opened)
        from gguf import GGUFReader

        tensors, size = GGUFReader(file).tensors, file.stat().st_size
        end = 0
        for tensor in sorted(tensors, key=lambda each: each.data_offset):
            if tensor.data_offset < end or tensor.data_offset + tensor.n_bytes > size:
                raise ValueError(f"the tensor {tensor.name} overlaps another one or ends after the file")
            end = tensor.data_offset + tensor.n_bytes
        return {tensor.name: tensor.n_elements for tensor in tensors}


def _check_header(file: IO[bytes]) -> None:
    """Walk through the metadata of a GGUF file, whose readers would build a list for each array."""
    version, _, fields = _read(file, "4xIQQ")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}, and {VERSIONS} are read")
    left = VALUES
    for _ in range(fields):
        _skip_texts(file, 1)
        (kind,) = _read(file, "I")
        inner, count = _read(file, "IQ") if kind == ARRAY else (kind, 1)
        left -= count
        if left < 0:
            raise ValueError(f"its metadata has more than {VALUES:,} values")
        if inner == STRING:
            _skip_texts(file, count)
        elif inner in SIZES:
            _skip(file, SIZES[inner] * count)
        else:
            raise ValueError(f"a value of its metadata is of type {inner}")


def _skip_texts(file: IO[bytes], count: int) -> None:
    for _ in range(count):
        _skip(file, *_read(file, "Q"))


def _skip(file: IO[bytes], count: int) -> None:
    if count > os.fstat(file.fileno()).st_size - file.tell():
        raise ValueError("it ends within its metadata")
    file.seek(count, os.SEEK_CUR)


def _read(file: IO[bytes], form: str) -> tuple[int, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def check_all_read(file: Path, values: Mapping[str, int], model: Any, loading: Mapping[str, Any]) -> None:
    """Refuse a GGUF file if transformers left out tensors, or initialised missing parameters at random.

    `values`: of each tensor in the file; `loading`: transformers' report.
    """
    for name, stored, wanted in sorted(loading["mismatched_keys"]):
        raise InputError(f"{file}: {name} has the shape {list(stored)}, and {list(wanted)} by its metadata; {AGAIN}")
    for name in sorted(loading["missing_keys"]):
        raise InputError(f"{file}: lacks {name}, and transformers would draw it at random; {AGAIN}")
    held = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    tied = (OUTPUT,) if model.config.tie_word_embeddings else ()
    read = [name for name in values if name not in tied and not any(part in name for part in CONSTANTS)]
    surplus = sum(values[name] for name in read) - sum(held.values())
    if surplus > 0:
        reason = f"{surplus:,} of its values have no place in {type(model).__name__}, and would be left out"
        raise InputError(f"{file}: {reason}; merge the model that it was made from")
