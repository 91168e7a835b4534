"""Scan a torch file's pickles before torch loads them: even with `weights_only` they may take any memory and time."""

import pickletools
import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any

from merganser.errors import refusing

LEGACY = 5  # pickles that a file from before torch 1.6 begins with
# What makes memory of any length: a bytearray, and torch's constructors of tensors without values.
GROWING = re.compile(rb"bytearray|ctorch(\.\w+)*\n\w*Tensor\n")
TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
MOST = 10_000  # values in a tuple with the tuples in it: hashing one, as a key, takes a step for each


def check_pickles(path: Path) -> None:
    """Refuse a file that takes more memory or time than its bytes explain; raise InputError."""
    refused = refusing(f"{path}: cannot be loaded as plain weights", "convert it to safetensors", Exception)
    with refused, path.open("rb") as file:
        if file.read(4) == b"PK\3\4" or zipfile.is_zipfile(path):
            for record in _records(file):
                _check_growing(record)
                _check_tuples(BytesIO(record))
        elif path.stat().st_size:
            with mmap(file.fileno(), 0, access=ACCESS_READ) as whole:
                _check_growing(whole)
                is_pickled = whole[:1] == b"\x80"
            file.seek(0)
            for _ in range(LEGACY if is_pickled else 0):
                _check_tuples(file)


def _records(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the pickles in a torch archive."""
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise ValueError("its records are compressed, and torch compresses none")
        for record in records:
            if record.filename.lower().endswith(".pkl"):
                yield archive.read(record)


def _check_growing(content: bytes | mmap) -> None:
    if (match := GROWING.search(content)) is not None:
        raise ValueError(f"it makes a {match[0].decode().split()[-1]} of any length, without values in the file")


def _check_tuples(file: IO[bytes]) -> None:
    """Refuse tuples that contain one another many times, by simulating the pickle machine's stack."""
    stack, marks, memo = list[int](), list[int](), dict[int, int]()
    argument: Any
    for code, argument, _ in pickletools.genops(file):
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            marks.append(len(stack))
        else:
            taken = _pop(stack, marks, code)
            count = 1 + sum(taken) if code.name in TUPLES else 1
            if count > MOST:
                raise ValueError(f"it has a tuple of more than {MOST:,} values")
            stack += [count] * len(code.stack_after)


def _pop(stack: list[int], marks: list[int], code: pickletools.OpcodeInfo) -> list[int]:
    """Pop the arguments of an opcode: some values, or some and all after the last mark."""
    some = len(code.stack_before)
    # the mark, and what is behind it, are two of them
    start = marks.pop() + 2 - some if pickletools.stackslice in code.stack_before else len(stack) - some
    taken = stack[start:]
    del stack[start:]
    return taken
