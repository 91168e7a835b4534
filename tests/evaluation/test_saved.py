"""Data sets of strangers: nothing but their own bytes is read, and no more than they hold."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, LargeList, List, Value

from merganser.errors import InputError
from merganser.evaluation import columns
from merganser.evaluation.columns import batches, check_images
from merganser.evaluation.data_sets import check_saved, load_saved, open_split, read_headers
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.models import open_network
from merganser.sources.fetching import fetch_data_set
from tests.support import each
from tests.tiny_clip import write_clip

PICTURE = PIL.Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8))
MEDIA = ("Image", "Audio", "Video", "Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure")
FORMATS = {"BioSequence": "fasta", "BioStructure": "pdb"}
FILE = "data-00000-of-00001.arrow"


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """Give an address on this machine, and what was asked of it."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/internal", paths
        server.shutdown()


def tell(folder: Path, told: Any) -> None:
    """Say in a data set's header that the column `extra` is of a feature."""
    path = folder / "test/dataset_info.json"
    content = json.loads(path.read_text())
    content["features"]["extra"] = told
    path.write_text(json.dumps(content))


def saved(folder: Path, extra: Any = None, feature: Any = None, told: Any = None) -> Path:
    """Save two pictures with their labels, and a column beside them that is said to be `told`."""
    columns: dict[str, Any] = {"image": [PICTURE] * 2, "label": [0, 1]}
    features: dict[str, Any] = {"image": Image(), "label": ClassLabel(names=["a", "b"])}
    if feature is not None:
        columns["extra"], features["extra"] = [extra] * 2, feature
    DatasetDict({"test": Dataset.from_dict(columns, features=Features(features))}).save_to_disk(folder)
    if told is not None:
        tell(folder, told)
    return folder


def read(folder: Path, out: Path) -> None:
    """Fetch a data set and read its pictures, as the stages do."""
    out.mkdir()
    fetch_data_set(folder, out, check_images)
    list(batches(open_split(out, "test", columns=("image", "label")), 2))


STORED = {"bytes": Value("binary"), "path": Value("string")}  # a picture, sound or the like, in Arrow
NESTED: dict[
    str, tuple[Callable[[Any], Any], Any, Callable[[Any], Any]]
] = {  # a value, its columns, what is said of it
    "itself": (lambda value: value, STORED, lambda own: own),
    "list": (lambda value: [value], List(STORED), lambda own: {"_type": "List", "feature": own}),
    "sequence": (lambda value: [value], List(STORED), lambda own: {"_type": "Sequence", "feature": own}),
    "lists": (
        lambda value: [[value]],
        LargeList(List(STORED)),
        lambda own: {"_type": "LargeList", "feature": {"_type": "List", "feature": own}},
    ),
    "struct": (
        lambda value: {"in": {"it": [value]}},
        {"in": {"it": List(STORED)}},
        lambda own: {"in": {"it": {"_type": "List", "feature": own}}},
    ),
    "structs": (
        lambda value: [{"it": value}],
        List({"it": STORED}),
        lambda own: {"_type": "List", "feature": {"it": own}},
    ),
}


@each("nested", NESTED)
def test_files_and_addresses_named_in_any_column_are_refused_by_the_column(
    tmp_path: Path, asked: tuple[str, list[str]], nested: str
) -> None:
    address, paths = asked
    hold, stored, say = NESTED[nested]
    folder = saved(tmp_path / nested, hold({"bytes": None, "path": address}), stored)
    for kind in MEDIA:
        tell(folder, say({"_type": kind, "format": FORMATS.get(kind)}))
        with pytest.raises(InputError, match=r"split test: the column 'extra' only names the file 'http://127"):
            read(folder, tmp_path / f"{nested}-{kind}")
    assert paths == []


def test_files_of_this_machine_named_in_a_column_are_refused(tmp_path: Path) -> None:
    picture = tmp_path / "own.png"
    PICTURE.save(picture)
    value = [{"bytes": None, "path": str(picture)}]
    folder = saved(tmp_path / "rows", value, List(STORED), {"_type": "List", "feature": {"_type": "Image"}})
    with pytest.raises(InputError, match=r"the column 'extra' only names the file '.*own\.png'"):
        read(folder, tmp_path / "out")


def test_columns_that_a_task_does_not_read_are_never_decoded(tmp_path: Path) -> None:
    broken = {"bytes": b"no picture", "path": None}
    folder = saved(tmp_path / "rows", broken, STORED, {"_type": "Image"})
    (tmp_path / "out").mkdir()
    fetch_data_set(folder, tmp_path / "out", check_images)
    (tmp_path / "prepared").mkdir()
    write_clip(tmp_path / "clip")
    network = open_network("open_clip", tmp_path / "clip")
    evaluator = open_evaluator("image_classification", {"templates": ["{}"]}, None)
    evaluator.prepare(tmp_path / "out", "test", network, tmp_path / "prepared")
    assert Prepared(tmp_path / "prepared").array("label").tolist() == [0, 1]


def test_an_example_without_a_picture_is_refused(tmp_path: Path) -> None:
    rows = Dataset.from_dict(
        {"image": [None, PICTURE], "label": [0, 1]},
        features=Features({"image": Image(), "label": ClassLabel(names=["a", "b"])}),
    )
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "rows")
    with pytest.raises(InputError, match="the column 'image' has examples without a picture"):
        read(tmp_path / "rows", tmp_path / "out")


def test_large_pictures_are_decoded_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_PIXELS", 150)
    found = list(batches(open_split(saved(tmp_path / "rows"), "test"), 2))
    assert [len(batch["image"]) for batch in found] == [2]
    monkeypatch.setattr(columns, "MOST_PIXELS", 100)
    found = list(batches(open_split(tmp_path / "rows", "test"), 2))
    assert [batch["label"] for batch in found] == [[0], [1]]
    assert [batch["image"][0].size for batch in found] == [(8, 8), (8, 8)]


def encoded(kind: str) -> bytes:
    out = io.BytesIO()
    PICTURE.save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encoded("EPS"), "examples 0 to 1: a picture cannot be read .it is EPS; save it as PNG or JPEG"),
        (encoded("ICO"), "it is ICO"),
        (encoded("AVIF").replace(b"pict", b"pick"), "a picture cannot be read"),  # a RuntimeError of PIL
        (encoded("DDS").replace(b" \x00\x00\x00A", b" \x00\x00\x00\xff"), "a picture cannot be read"),
    ],
    ids=["EPS", "ICO", "AVIF", "DDS"],
)
def test_pictures_that_pil_does_not_decode_itself_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")  # PIL would run it on the picture
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    rows = Dataset.from_dict({"image": [{"bytes": content, "path": None}] * 2}, features=Features({"image": Image()}))
    with pytest.raises(InputError, match=said):
        list(batches(rows, 2))
    assert not (tmp_path / "ran").exists()


def test_columns_that_the_header_and_the_rows_say_otherwise_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "rows", "text", Value("string"), {"_type": "Image"})
    with pytest.raises(InputError, match="not a whole saved data set"):
        read(folder, tmp_path / "out")


@pytest.mark.parametrize("kind", ["Path", "DatasetInfo", "os.system", "Nothing", 3, None])
def test_a_feature_of_no_known_type_is_refused(tmp_path: Path, kind: Any) -> None:
    folder = saved(tmp_path / "rows", "text", Value("string"), {"_type": kind, "path": "/etc/passwd"})
    with pytest.raises(InputError, match="does not say the columns"):
        read_headers(folder)
    with pytest.raises(InputError, match="not a whole saved data set"):
        load_saved(folder)


def test_classes_are_not_read_from_a_file_that_the_header_names(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("one\ntwo")
    told = {"_type": "ClassLabel", "names_file": str(tmp_path / "secret"), "num_classes": 10**10}
    folder = saved(tmp_path / "rows", 0, Value("int64"), told)
    try:
        names = read_headers(folder)["test"].features["extra"].names
    except InputError:
        names = None
    assert not names


def written(folder: Path, table: Any, **options: Any) -> Path:
    """Put a table in the place of a saved split's file."""
    path, how = str(folder / "test" / FILE), pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema, options=how) as out:
        out.write_table(table)
    (folder / "test/dataset_info.json").write_text(
        json.dumps({"features": Features.from_arrow_schema(table.schema).to_dict()})
    )
    return folder


def overlapping() -> Any:
    offsets = pa.py_buffer(np.array([0, 5, 0, 5], dtype=np.int32))
    return pa.ListArray.from_buffers(pa.list_(pa.int64()), 3, [None, offsets], children=[pa.array(range(5))])


def outside() -> Any:
    offsets = pa.py_buffer(np.array([0, 2**30, 5], dtype=np.int32))
    return pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcde"))


EXCESSIVE: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {  # by what is said of it
    r"would expand [0-9]+ bytes to 3[0-9]{8}": (
        lambda: pa.array(np.zeros(300_000_000, dtype=np.int8)),
        {"compression": "zstd"},
    ),
    "announces 1000000000 values": (lambda: pa.nulls(10**9), {}),
    "type dictionary": (lambda: pa.array(["a" * 1000, "b"]).dictionary_encode(), {}),
    "type string_view": (lambda: pa.array(["a", "b"], pa.string_view()), {}),
    "damaged": (overlapping, {}),
    "damaged .*offset": (outside, {}),
}


@each("said", EXCESSIVE)
def test_arrow_files_that_hold_more_than_their_bytes_are_refused(tmp_path: Path, said: str) -> None:
    column, options = EXCESSIVE[said]
    folder = written(saved(tmp_path / str(len(said))), pa.table({"text": column()}), **options)
    with pytest.raises(InputError, match=said):
        open_split(folder, "test")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_columns_of_an_honest_size_are_read(tmp_path: Path, compression: str) -> None:
    texts = [f"text {number}" for number in range(1000)]
    folder = written(saved(tmp_path / "rows"), pa.table({"text": texts}), compression=compression)
    assert open_split(folder, "test")["text"][:] == texts


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "rows")
    state = folder / "test/state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps(content | {"_data_files": content["_data_files"] * 1000}))
    with pytest.raises(InputError, match=r"state\.json: names a file twice"):
        load_saved(folder)


def test_a_split_without_examples_is_refused_from_the_headers(tmp_path: Path) -> None:
    splits = {"train": Dataset.from_dict({"text": ["a"]}), "test": Dataset.from_dict({"text": []})}
    DatasetDict(splits).save_to_disk(tmp_path / "data")
    for read in (read_headers, load_saved):
        with pytest.raises(InputError, match="data/test: a split without examples"):
            read(tmp_path / "data")


def test_rows_come_plain_whatever_format_the_data_set_was_saved_with(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"text": ["a"], "label": [0]}).with_format("numpy")
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "rows")
    assert type(open_split(tmp_path / "rows", "test")["label"][0]) is int


@pytest.mark.parametrize("kind", ["rows.csv", "rows", "split", "pictures"])
def test_what_is_no_saved_data_set_is_refused_with_the_call_that_saves_it(tmp_path: Path, kind: str) -> None:
    given, rows = tmp_path / kind, Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    if kind == "split":
        rows.save_to_disk(given)
    elif kind == "pictures":
        for name in ("cat", "dog"):
            (given / name).mkdir(parents=True)
            PICTURE.save(given / name / "1.png")
    else:
        file = given if given.suffix else given / "test.csv"
        file.parent.mkdir(exist_ok=True)
        rows.to_csv(file)
    with pytest.raises(InputError, match=r"no saved data set; .*; make one by ") as refused:
        check_saved(given)
    call = str(refused.value).partition("make one by ")[2]
    eval(call, {"datasets": datasets, "FOLDER": tmp_path / "saved"})
    check_saved(tmp_path / "saved")
