"""Arrow files of data sets, checked before they are read: what a file claims must be in it.

A message of some bytes may claim buffers that expand to gigabytes, rows without bytes, and lists whose offsets lead out
of their values. Reading it would take the memory, or crash the process.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from merganser.errors import InputError, refusing
from merganser.limits import check_file

EXPANDED = 100  # times the bytes of the files: more than text and numbers gain by compression
SPARE = 2**28  # bytes that may be expanded to whatever the size of the files
ROWS_A_BYTE = 8  # the smallest value is a bit
# Types of one value that stands for many: they are read as copies of it.
SHARED = ("dictionary", "run_end_encoded", "string_view", "binary_view", "list_view", "large_list_view", "union")


def check_arrow_files(files: Sequence[Path]) -> None:
    """Refuse Arrow streams that hold more than their bytes can, from their headers alone."""
    size = expanded = 0
    for path in files:
        check_file(path)
        size += path.stat().st_size
        for rows, nbytes in _batches(path):
            if rows > ROWS_A_BYTE * max(nbytes, 1):
                raise InputError(f"{path}: announces {rows} values in {nbytes} bytes; save the data set again")
            expanded += nbytes
        if expanded > EXPANDED * size + SPARE:
            raise InputError(
                f"{path}: its compressed columns would expand {size} bytes to {expanded}, more than {EXPANDED} times "
                f"as many and {SPARE >> 20} MiB; save the data set again without compression"
            )


def check_values(table: Any, source: Path) -> None:
    """Refuse a table whose offsets lead out of their values, or go back: a value could be repeated without end."""
    import pyarrow  # type: ignore[import-untyped]

    for field in table.schema:
        shared = [name for name in _type_names(field.type) if name in SHARED]
        if shared:
            raise InputError(f"{source}: the column {field.name!r} is of type {shared[0]}; save it as plain values")
    with refusing(f"{source}: its values are damaged", "fetch it again", pyarrow.ArrowException):
        table.validate(full=True)


def _type_names(kind: Any) -> Iterator[str]:
    """Name an Arrow type and those within it."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        yield from _type_names(kind.storage_type)
        return
    yield next((name for name in SHARED if getattr(pyarrow.types, f"is_{name}")(kind)), str(kind))
    for number in range(kind.num_fields):
        yield from _type_names(kind.field(number).type)


def _batches(path: Path) -> Iterator[tuple[int, int]]:
    """Give of each record batch the most values that a column announces, and its bytes once they are expanded."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        for message in pyarrow.ipc.MessageReader.open_stream(source):
            if message.type == "dictionary":
                raise InputError(f"{path}: has a column of type dictionary; save it as plain values")
            if message.type == "record batch":
                yield _announced(message.metadata.to_pybytes(), memoryview(message.body))


def _announced(metadata: bytes, body: memoryview) -> tuple[int, int]:
    """Read a record batch's header, a flatbuffer (Message.fbs of the Arrow format) that Arrow itself has verified."""
    batch = _table(metadata, _field(metadata, _table(metadata, 0), 2))
    nodes, buffers = (_pairs(metadata, _field(metadata, batch, number)) for number in (1, 2))
    is_compressed = _field(metadata, batch, 3) is not None
    nbytes = 0
    for offset, length in buffers:
        if not 0 <= offset <= offset + length <= len(body):
            raise ValueError("a buffer lies outside of its message")
        # A compressed buffer begins with its expanded length; -1 stands for one that is stored as it is.
        expanded = struct.unpack_from("<q", body, offset)[0] if is_compressed and length >= 8 else -1
        nbytes += expanded if expanded >= 0 else length
    return max((length for length, _ in nodes), default=0), nbytes


def _table(metadata: bytes, place: int | None) -> int:
    """Follow the offset at a place."""
    if place is None:
        raise ValueError("a message lacks its header")
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table is; None where it has its default."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, fields)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0]
    return table + offset if offset else None


def _pairs(metadata: bytes, place: int | None) -> list[tuple[int, int]]:
    """Read a vector of structs of two 64-bit numbers."""
    if place is None:
        return []
    start = _table(metadata, place)
    count = struct.unpack_from("<I", metadata, start)[0]
    return list(struct.iter_unpack("<qq", metadata[start + 4 : start + 4 + 16 * count]))
