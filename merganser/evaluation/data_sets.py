"""Check and open saved data sets.

An Arrow file may claim buffers that expand to gigabytes, rows without bytes, and lists whose offsets leave their
values; reading it would take the memory, or crash the process. So claims are checked first. Pictures, sounds and the
like are read from the data set's own bytes alone, never from files or addresses that it names. The data sets of a group
are one: each row has its data set's name and its content as JSON.
"""

import json
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from merganser.errors import InputError, refusing
from merganser.limits import EXPANDED, SPARE, check_file, check_plain, parse_json, read_small

ROWS_A_BYTE = 8  # the smallest value is a bit
# Types of one value that stands for many: they are read as copies of it.
SHARED = ("dictionary", "run_end_encoded", "string_view", "binary_view", "list_view", "large_list_view", "union")


def check_arrow_files(files: Sequence[Path]) -> None:
    """Refuse Arrow streams whose headers claim more than their bytes can hold."""
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
    """Refuse a table with offsets that leave their values or go back, which could repeat a value without end."""
    import pyarrow

    for field in table.schema:
        shared = [name for name in _type_names(field.type) if name in SHARED]
        if shared:
            raise InputError(f"{source}: the column {field.name!r} is of type {shared[0]}; save it as plain values")
    with refusing(f"{source}: its values are damaged", "fetch it again", pyarrow.ArrowException):
        table.validate(full=True)


def _type_names(kind: Any) -> Iterator[str]:
    """Name an Arrow type and the types within it."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        yield from _type_names(kind.storage_type)
        return
    yield next((name for name in SHARED if getattr(pyarrow.types, f"is_{name}")(kind)), str(kind))
    for number in range(kind.num_fields):
        yield from _type_names(kind.field(number).type)


def _batches(path: Path) -> Iterator[tuple[int, int]]:
    """Yield each record batch's largest claimed column, in values, and its bytes after expansion."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        for message in pyarrow.ipc.MessageReader.open_stream(source):
            if message.type == "dictionary":
                raise InputError(f"{path}: has a column of type dictionary; save it as plain values")
            if message.type == "record batch":
                yield _announced(message.metadata.to_pybytes(), memoryview(message.body))


def _announced(metadata: bytes, body: memoryview) -> tuple[int, int]:
    """Parse a record batch's header, a flatbuffer (Message.fbs of the Arrow format) that Arrow has verified."""
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
    """Return the position that the flatbuffer offset at a position points to."""
    if place is None:
        raise ValueError("a message lacks its header")
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the position of a table's field; None if it has its default."""
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


def check_named_files(splits: Mapping[str, Any], source: Path, stores: Collection[str | Path] = ()) -> None:
    """Refuse a data set whose columns, at any depth, name files or addresses that `datasets` would open.

    `stores`: folders of named files that are allowed: those into which the data set was downloaded.
    """
    own = [os.path.realpath(store) for store in stores]
    for split, rows in splits.items():
        for column, feature in rows.features.items():
            for chunk in rows.data.column(column).chunks:
                for path in _named(feature, chunk, f"{source}: split {split}: the column {column!r}"):
                    if not any(Path(os.path.realpath(path)).is_relative_to(store) for store in own):
                        what = f"split {split}: the column {column!r} only names the file {path!r}"
                        raise InputError(f"{source}: {what}; save the data set with the file's bytes")


def opens_files(feature: Any) -> bool:
    """Tell whether a feature, or one within it, decodes its values from bytes or from named files."""
    if isinstance(feature, Mapping):
        return any(opens_files(inner) for inner in feature.values())
    if isinstance(feature, list | tuple):
        return any(opens_files(inner) for inner in feature)
    inner = getattr(feature, "feature", None)  # of the lists
    if inner is not None:
        return opens_files(inner)
    from datasets import Json

    return hasattr(feature, "decode_example") and not isinstance(feature, Json)


def _named(feature: Any, array: Any, where: str) -> Iterator[str]:
    """Yield the names of files without bytes in an Arrow array, down to its innermost values."""
    import pyarrow

    if not opens_files(feature):
        return
    if isinstance(feature, Mapping):
        for key, inner in feature.items():
            yield from _named(inner, array.field(key), where)
    elif isinstance(feature, list | tuple):
        yield from _named(feature[0], array.flatten(), where)
    elif getattr(feature, "feature", None) is not None:
        yield from _named(feature.feature, array.flatten(), where)
    else:
        kind = array.type
        if not pyarrow.types.is_struct(kind) or {kind.field(i).name for i in range(kind.num_fields)} != {
            "bytes",
            "path",
        }:
            raise InputError(f"{where} is of a kind that is not read, {type(feature).__name__}; leave it out")
        named = array.filter(array.field("bytes").is_null()).field("path")
        yield from (str(path) for path in named.drop_null().to_pylist())


SPLITS = "dataset_dict.json"
INFORMATION = "dataset_info.json"  # of a split: its columns and their features
STATE = "state.json"  # of a split: its files
READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # of `datasets`, by files' endings
READERS_OF_FOLDERS = READERS | dict.fromkeys((".jpeg", ".jpg", ".png", ".webp"), "imagefolder")
LOOKED_AT = 1000  # files of a folder
INFORMATION_LIMIT = 2**25  # bytes: it names the classes, and the files that it was made of


def check_saved(folder: Path) -> None:
    """Refuse a folder that is no saved data set."""
    if not (folder / SPLITS).exists():
        made = _loading(folder)
        remedy = f"; make one by datasets.{made}.save_to_disk(FOLDER)" if made else ""
        raise InputError(f"{folder}: no saved data set; expected a folder written by DatasetDict.save_to_disk{remedy}")


def _loading(path: Path) -> str | None:
    """Return the call of `datasets` that loads a file, a folder of files or a single split; None if there is none.

    >>> _loading(Path("mine.csv"))
    'load_dataset("csv", data_files={"test": "mine.csv"})'
    """
    if (path / STATE).exists():
        return f'DatasetDict({{"test": datasets.load_from_disk("{path}")}})'
    if path.is_dir():
        endings = [each.suffix for each in islice(path.rglob("*"), LOOKED_AT)]
        kind = next((READERS_OF_FOLDERS[ending] for ending in endings if ending in READERS_OF_FOLDERS), None)
        return f'load_dataset("{kind}", data_dir="{path}")' if kind else None
    reader = READERS.get(path.suffix)
    return f'load_dataset("{reader}", data_files={{"test": "{path}"}})' if reader else None


def read_headers(folder: Path) -> dict[str, Any]:
    """Return each split of a saved data set without rows, with columns as its header describes them.

    Raises InputError if the data set is not complete.
    """
    from datasets import Dataset, DatasetInfo

    # computing a fingerprint would take longest, and data without rows needs none
    return {
        split: Dataset(features.arrow_schema.empty_table(), info=DatasetInfo(features=features), fingerprint=split)
        for split, features in _features(folder).items()
    }


def _features(folder: Path) -> dict[str, Any]:
    """Return the features of each split's columns; raise InputError if the data set is not complete."""
    from datasets import DatasetInfo

    check_saved(folder)
    features = {}
    for split in _splits(folder):
        where = folder / split / INFORMATION
        # of a file that is cut off or edited, `datasets` raises a dozen kinds
        with refusing(f"{where}: does not say the columns", "save the data set again", Exception):
            _files(folder / split)
            features[split] = DatasetInfo.from_dict(_information(folder / split)).features
            features[split].arrow_schema.empty_table()  # raises for types that Arrow does not know
    return features


def _information(split: Path) -> dict[str, Any]:
    return dict(parse_json(read_small(split / INFORMATION, INFORMATION_LIMIT)))


def load_saved(folder: Path) -> Any:
    """Open a saved data set or one of its splits, memory-mapped; raise InputError if it is not complete."""
    from datasets import load_from_disk

    # of a file that is cut off or edited, `datasets` and Arrow raise a dozen kinds
    with refusing(f"{folder}: not a whole saved data set", "fetch it again", Exception):
        splits = [folder / split for split in _splits(folder)] if (folder / SPLITS).exists() else [folder]
        check_arrow_files([split / name for split in splits for name in _files(split)])
        for split in splits:
            _information(split)  # `datasets` would read one of any size
        return load_from_disk(folder).with_format(None)  # a format of the file's own would convert what is read


def _files(split: Path) -> list[str]:
    """Name a split's files; refuse files elsewhere and files named twice, which `datasets` would follow."""
    files = [str(file["filename"]) for file in parse_json(read_small(split / STATE))["_data_files"]]
    for file in files:
        check_plain(file, split / STATE)
    if not files:
        raise InputError(f"{split}: a split without examples; save the data set without it")
    if len(set(files)) < len(files):
        raise InputError(f"{split / STATE}: names a file twice; save the data set again")
    return files


def check_content(splits: Any, source: Path, stores: Collection[str | Path] = ()) -> None:
    """Refuse damaged values, and files given by name alone; `stores`: folders in which such files are allowed."""
    for rows in splits.values():
        check_values(rows.data.table, source)
    check_named_files(splits, source, stores)


def open_split(
    folder: Path, split: str, where: str = "evaluation.split", columns: Collection[str] | None = None
) -> Any:
    """Open one split of a saved data set with some of its columns; `where`: the place that declares the split."""
    splits = _splits(folder)
    if split not in splits:
        raise InputError(f"{where}: {folder} has no split {split!r}; it has {', '.join(splits)}")
    rows = chosen(load_saved(folder / split), columns)
    check_content({split: rows}, folder)
    return rows


def chosen(rows: Any, columns: Collection[str] | None) -> Any:
    """Return a split with those of some columns that it has; with all columns for None."""
    return rows if columns is None else rows.select_columns([name for name in rows.column_names if name in columns])


def features_of(folder: Path) -> Any:
    """Return the features of a saved data set's columns; raise InputError if there is no data set."""
    return next(iter(_features(folder).values()))


def _splits(folder: Path) -> list[str]:
    if not (folder / SPLITS).exists():
        raise InputError(f"{folder}: no saved data set; fetch it first")
    with refusing(f"{folder / SPLITS}: does not list the splits", "fetch it again"):
        splits: list[str] = [str(split) for split in parse_json(read_small(folder / SPLITS))["splits"]]
    for split in splits:
        check_plain(split, folder / SPLITS)
    return splits


MEMBER, DOCUMENT = "member", "document"  # the columns of a group: a data set's name, and a row of it as JSON


def of_group(members: Mapping[str, Iterable[Mapping[str, Any]]]) -> Any:
    """Concatenate each member's data sets by split.

    Returns a `datasets.DatasetDict` with the columns `member` and `document`. Raises TypeError, naming the member,
    for values other than texts, numbers and lists.
    """
    from datasets import Dataset, DatasetDict

    columns: dict[str, dict[str, list[str]]] = {}
    for member, data_sets in members.items():
        for split, rows in ((split, rows) for splits in data_sets for split, rows in splits.items()):
            try:
                documents = to_json(rows)
            except TypeError as error:
                raise TypeError(f"{member}, split {split}: {error}") from error
            own = columns.setdefault(split, {MEMBER: [], DOCUMENT: []})
            own[MEMBER] += [member] * len(documents)
            own[DOCUMENT] += documents
    return DatasetDict({split: Dataset.from_dict(own) for split, own in columns.items()})


def to_json(rows: Iterable[Any]) -> list[str]:
    """Write each row as JSON; raise TypeError for values other than texts, numbers and lists.

    A column that would decode files is refused before it decodes any.
    """
    for column, feature in getattr(rows, "features", {}).items():
        if opens_files(feature):
            raise TypeError(f"the column {column!r} is {feature}")
    return [json.dumps(row) for row in rows]
