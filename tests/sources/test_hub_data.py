"""Data sets of a hub whose card or files ask for more than they hold."""

import gzip
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from merganser.errors import InputError
from merganser.evaluation.texts import check_texts
from merganser.sources.fetching import fetch_data_set
from tests.hub import COMMIT, Hub, serve
from tests.support import each

MIB = b"0" * 2**20
ENOUGH = 300  # of them, compressed to a few hundred KiB: more than is read


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty data set, and keep the client's caches in the test's folder."""
    (tmp_path / "rows").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({"datasets/org/rows": tmp_path / "rows"}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", served.url)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
        yield served


def fetch(folder: Path, commit: str = COMMIT) -> Path:
    """Fetch the data set at a commit into a folder."""
    pointer, out = folder / "pointer.yaml", folder / f"out-{commit}"
    pointer.write_text(f"{{hub: org/rows, revision: '{commit}'}}")
    out.mkdir()
    fetch_data_set(pointer, out, check_texts)
    return out


def card(data_files: object) -> str:
    return f"---\nconfigs:\n- config_name: default\n  data_files: {json.dumps(data_files)}\n---\n"


NAMES = (
    "/etc/hostname",
    "http://127.0.0.1:9/x",
    "file:///etc/hostname",
    "../other/x.txt",
    "zip://a::/etc/x.zip",
    "~/x.txt",
)


@each("name", NAMES)
@pytest.mark.parametrize(
    "wrapped", [lambda name: name, lambda name: [name], lambda name: [{"split": "test", "path": ["a.txt", name]}]]
)
def test_a_card_that_names_files_elsewhere_is_refused(
    tmp_path: Path, hub: Hub, name: str, wrapped: Callable[[str], object]
) -> None:
    commit = format(NAMES.index(name) + 1, "040x")
    hub.heads["datasets/org/rows"] = commit
    (tmp_path / "rows/a.txt").write_text("a\n")
    (tmp_path / "rows/README.md").write_text(card(wrapped(name)))
    with pytest.raises(InputError, match=r"README\.md of org/rows names '.*', which is not a plain file"):
        fetch(tmp_path, commit)


def test_a_card_that_names_its_own_files_is_followed(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "rows/data").mkdir()
    (tmp_path / "rows/data/a[1].txt").write_text("one\n")
    (tmp_path / "rows/data/b.txt").write_text("two\n")
    (tmp_path / "rows/README.md").write_text(card([{"split": "test", "path": "data/*.txt"}]))
    out = fetch(tmp_path)
    assert datasets.load_from_disk(out)["test"]["text"][:] == ["one", "two"]


def write_gzip(path: Path) -> None:
    """Write one compressed MiB again and again; the end, which is not reached, is left out."""
    stream = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    first = stream.compress(MIB) + stream.flush(zlib.Z_FULL_FLUSH)
    again = stream.compress(MIB) + stream.flush(zlib.Z_FULL_FLUSH)
    (path / "test.txt.gz").write_bytes(first + ENOUGH * again)


def write_zip(path: Path) -> None:
    with (
        zipfile.ZipFile(path / "test.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("test.txt", "w") as part,
    ):
        for _ in range(512):  # compressed at this level, fewer would be less than 100 times as many
            part.write(MIB)


def write_disguised(path: Path) -> None:
    write_gzip(path)
    (path / "test.txt.gz").rename(path / "test.txt")


def write_pages(path: Path) -> None:
    table = pa.table({"text": [MIB.decode()] * 10})
    with pyarrow.parquet.ParquetWriter(
        path / "test.parquet", table.schema, compression="zstd", use_dictionary=False, write_statistics=False
    ) as file:
        for _ in range(ENOUGH // 10):
            file.write_table(table)


def write_nested(path: Path) -> None:
    value = {"in": [{"text": MIB.decode()}]}
    table = pa.table({"text": pa.array([value] * ENOUGH)})
    pyarrow.parquet.write_table(table, path / "test.parquet", compression="zstd")


def write_dictionary(path: Path) -> None:
    table = pa.table({"text": pa.array([MIB] * ENOUGH, pa.binary()).cast(pa.string())})
    pyarrow.parquet.write_table(table, path / "test.parquet", compression="zstd")


@pytest.mark.parametrize("write", [write_gzip, write_zip, write_disguised, write_pages, write_dictionary, write_nested])
def test_files_that_expand_without_end_are_refused(tmp_path: Path, hub: Hub, write: Callable[[Path], None]) -> None:
    write(tmp_path / "rows")
    with pytest.raises(InputError, match=r"expands [0-9]+ bytes to [0-9]+, more than 100 times as many and 256 MiB"):
        fetch(tmp_path)


def test_compressed_files_of_an_honest_size_are_read(tmp_path: Path, hub: Hub) -> None:
    with gzip.open(tmp_path / "rows/test.txt.gz", "wt") as file:
        file.write("one\ntwo\n")
    assert datasets.load_from_disk(fetch(tmp_path))["test"]["text"][:] == ["one", "two"]


def test_a_data_set_in_a_format_that_is_not_read_is_refused_by_its_name(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "rows/test.xml").write_text("<a/>")
    with pytest.raises(InputError, match=r"org/rows is stored as xml; data sets are read as parquet, csv"):
        fetch(tmp_path)


DAMAGED = {
    "in latin-1": ("test.csv", "text\nä\n".encode("latin-1"), "can't decode byte 0xe4"),
    "a row with more columns": ("test.csv", b"text,label\na,0\nb,1,7\n", "Expected 2 fields in line 3, saw 3"),
    "a quote without an end": ("test.csv", b'text,label\n"a,0\n', "EOF inside string"),
    "JSON without a line": ("test.jsonl", b"", "StopIteration"),
    "JSON nested deeply": ("test.jsonl", b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested more than 100 deep"),
    "a card that is no YAML": ("README.md", b"---\n[\n---\n", "while parsing a flow node"),
    "a card of other sizes": (
        "README.md",
        b"---\ndataset_info:\n  splits: [{name: test, num_examples: 7, num_bytes: 3}]\n---\n",
        "cannot be loaded as a data set",
    ),
    "a card of no types": (
        "README.md",
        b"---\ndataset_info: {features: [{name: text, dtype: 3}]}\n---\n",
        "Expected a",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_data_set_of_another_form_is_refused_with_what_datasets_says(tmp_path: Path, hub: Hub, name: str) -> None:
    file, content, reason = DAMAGED[name]
    commit = hub.heads["datasets/org/rows"] = hashlib.sha1(name.encode()).hexdigest()
    (tmp_path / "rows" / file).write_bytes(content)
    if not file.startswith("test"):
        (tmp_path / "rows/test.csv").write_bytes(b"text\na\n")
    with pytest.raises(InputError, match=reason):
        fetch(tmp_path, commit)
