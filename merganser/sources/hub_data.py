"""Check a hub's data sets before `datasets` loads them: the files that they name, and their size; rename columns.

A repository's card may name files of this machine and addresses as its data, and a small file may expand without end.
"""

import bz2
import glob
import gzip
import lzma
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from merganser.errors import InputError, did_you_mean, refusing
from merganser.evaluation.data_sets import ROWS_A_BYTE, check_arrow_files
from merganser.limits import DEPTH, EXPANDED, SPARE, parse_yaml, read_small
from merganser.sources.guarded import data_set_cache
from merganser.sources.hub import hub_api
from merganser.sources.pointers import HubPointer


def rename_columns(splits: Any, columns: Mapping[str, str], source: Path) -> Any:
    """Return the splits of a data set, or their headers, with columns renamed: `columns` maps new names to old ones.

    A column that had a new name already is dropped. Raises InputError for an old name that a split does not have.
    """
    changed = {new: old for new, old in columns.items() if new != old}
    for split, rows in splits.items():
        for new, old in changed.items():
            if old not in rows.column_names:
                has = f"it has {rows.column_names}{did_you_mean(old, rows.column_names)}"
                raise InputError(f"data.columns.{new}: split {split} of {source} has no column {old!r}; {has}")
    return type(splits)({split: _renamed(rows, changed) for split, rows in splits.items()}) if changed else splits


def _renamed(rows: Any, changed: Mapping[str, str]) -> Any:
    dropped = [new for new in changed if new in rows.column_names and new not in changed.values()]
    return rows.remove_columns(dropped).rename_columns({old: new for new, old in changed.items()})


CARD, STANDALONE = "README.md", ".huggingface.yaml"  # where a data set's configurations name their files
CARD_LIMIT = 2**25  # bytes: it names the classes of each configuration
FORMATS = ("parquet", "csv", "json", "text", "arrow", "imagefolder", "webdataset")  # as `datasets` calls them
MAGIC: dict[bytes, Any] = {  # opens a compressed file
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
OTHER_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!")  # zstd, lz4, 7z, rar
ZIP = b"PK\x03\x04"
BLOCK = 2**20
TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]')  # of JSON: texts, and what nests values
TEXTS, ROWS = 2**16, 32  # rows of a Parquet file that are looked at at a time: of a dictionary's texts, and others


def load_checked(pointer: HubPointer, name: str | None, revision: str, source: Path) -> Any:
    """Load a hub's data set by `datasets`; raise InputError if its files are not its own, or expand too much.

    Downloads go to the current cache. Raises what `datasets` and the hub's client raise.
    """
    from datasets import load_dataset_builder

    _check_card(pointer, revision, source)
    builder = load_dataset_builder(pointer.hub, name, revision=revision, cache_dir=str(data_set_cache()))
    form = type(builder).__module__.rpartition(".")[2]
    if form not in FORMATS:
        raise InputError(f"{source}: {pointer.hub} is stored as {form}; data sets are read as {', '.join(FORMATS)}")
    files = _download(builder, pointer, revision, source)
    _check_files(files)
    for path in files if form == "json" else ():
        _check_nesting(path)
    builder.download_and_prepare()
    return builder.as_dataset()


def _check_card(pointer: HubPointer, revision: str, source: Path) -> None:
    """Refuse configurations that name files by an absolute path or an address."""
    from huggingface_hub import DatasetCard
    from huggingface_hub.errors import EntryNotFoundError

    api = hub_api()
    for name in (CARD, STANDALONE):
        try:
            path = Path(api.hf_hub_download(pointer.hub, name, repo_type="dataset", revision=revision))
        except EntryNotFoundError:
            continue
        text = read_small(path, CARD_LIMIT).decode(errors="replace")
        content = (
            DatasetCard(text, ignore_metadata_errors=True).data.to_dict() if name == CARD else parse_yaml(text, name)
        )
        configurations = content.get("configs") if isinstance(content, Mapping) else None
        listed = configurations if isinstance(configurations, list) else []
        kept = [each for each in listed if isinstance(each, Mapping)]
        for text in _leaves([each.get(key) for each in kept for key in ("data_files", "data_dir")]):
            if text.startswith(("/", "~")) or "::" in text or "://" in text or ".." in Path(text).parts:
                raise InputError(f"{source}: {name} of {pointer.hub} names {text!r}, which is not a plain file")


def _leaves(content: Any) -> Iterator[str]:
    inner = content.values() if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    for inner_value in inner:
        yield from _leaves(inner_value)
    if isinstance(content, str):
        yield content


def _download(builder: Any, pointer: HubPointer, revision: str, source: Path) -> list[Path]:
    """Download a data set's files into the hub's own cache, where `datasets` finds them."""
    from huggingface_hub import snapshot_download

    files = [str(file) for split in (builder.config.data_files or {}).values() for file in split]
    names = []
    for file in files:
        place, _, name = file.removeprefix("hf://datasets/").partition(f"@{revision}/")
        if not file.startswith("hf://") or place != pointer.hub or not name or ".." in name.split("/"):
            raise InputError(f"{source}: {pointer.hub} names {file!r}, which is not a plain file at its commit")
        names.append(name)
    wanted = [glob.escape(name) for name in names]
    endpoint = os.environ.get("HF_ENDPOINT")
    folder = Path(
        snapshot_download(
            pointer.hub, repo_type="dataset", revision=revision, allow_patterns=wanted or [CARD], endpoint=endpoint
        )
    )
    return [folder / name for name in names]


def _check_files(files: list[Path]) -> None:
    """Refuse files that would expand beyond a limit."""
    for path in files:
        start = _start_of(path)
        if path.suffix == ".parquet":
            _check_parquet(path)
        elif path.suffix == ".arrow":
            check_arrow_files([path])
        elif start.startswith(OTHER_MAGIC):
            raise InputError(f"{path.name}: is compressed in a way that is not read; gzip and zip are")
        elif start.startswith((ZIP, *MAGIC)):
            _check_archive(path)


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _check_nesting(path: Path) -> None:
    """Refuse JSON nested so deeply that its recursive parsers would crash the process."""
    depth = 0
    for line in chain.from_iterable(_parts(path)):
        for token in map(itemgetter(0), TOKENS.finditer(line)):
            depth += (token in b"[{") - (token in b"]}")
            if depth > DEPTH:
                raise InputError(f"{path.name}: nested more than {DEPTH} deep; it is not read")


def _check_parquet(path: Path) -> None:
    """Refuse a Parquet file by its footer's claims, then by its values, a few rows at a time.

    A dictionary page's value may be used in any number of rows. It counts in each, but is copied only if it is
    nested, for the rows in memory.
    """
    import pyarrow
    import pyarrow.parquet

    size, expanded = path.stat().st_size, 0
    with refusing(f"{path.name}: not a whole Parquet file", "fetch it again", (pyarrow.ArrowException, OSError)):
        metadata = pyarrow.parquet.read_metadata(path)
        if metadata.num_rows > EXPANDED * ROWS_A_BYTE * size:
            raise InputError(f"{path.name}: announces {metadata.num_rows} rows in {size} bytes; it is not read")
        _check_size(path.name, size, sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)))
        schema = [metadata.schema.column(number) for number in range(len(metadata.schema))]
        texts = [each.path for each in schema if each.physical_type == "BYTE_ARRAY" and "." not in each.path]
        others = [each.path for each in schema if each.path not in texts]
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
            for columns, rows in ((texts, TEXTS), (others, ROWS)):
                for batch in file.iter_batches(rows, columns=columns, use_threads=False) if columns else ():
                    expanded += sum(_bytes_of(column) for column in batch.columns)
                    _check_size(path.name, size, expanded)


def _bytes_of(array: Any) -> int:
    """Count the bytes of an Arrow array's values with dictionaries expanded."""
    import pyarrow
    from pyarrow import compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return int(compute.sum(lengths).as_py() or 0)
    if pyarrow.types.is_struct(kind):
        return sum(_bytes_of(inner) for inner in array.flatten())
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _bytes_of(array.flatten())
    return int(array.nbytes)


def _check_archive(path: Path) -> None:
    """Expand an archive without storing anything, up to a limit."""
    size, expanded = path.stat().st_size, 0
    kinds = (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
    with refusing(f"{path.name}: not a whole archive", "fetch it again", kinds):
        for part in _parts(path):
            while block := part.read(BLOCK):
                expanded += len(block)
                _check_size(path.name, size, expanded)


def _parts(path: Path) -> Iterator[IO[bytes]]:
    """Yield the files in an archive, or the file itself, decompressed."""
    start = _start_of(path)
    if start.startswith(ZIP):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as part:
                    yield part
        return
    opened = next((way for magic, way in MAGIC.items() if start.startswith(magic)), Path.open)
    with opened(path, "rb") as part:
        yield part


def _check_size(name: str, size: int, expanded: int) -> None:
    if not 0 <= expanded <= EXPANDED * size + SPARE:
        limit = f"{EXPANDED} times as many and {SPARE >> 20} MiB"
        raise InputError(f"{name}: expands {size} bytes to {expanded}, more than {limit}; it is not read")
