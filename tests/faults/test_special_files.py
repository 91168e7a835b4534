"""What is not a plain file where one is expected is refused by its path and kind: a named pipe would be waited for."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch
from datasets import load_from_disk

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.reading import open_checkpoint
from merganser.command_line.merge import _lines
from merganser.config.loading import load_params
from merganser.config.recipes import read_recipe
from merganser.errors import InputError
from merganser.evaluation.columns import check_images
from merganser.evaluation.data_sets import open_split, read_headers
from merganser.models import get_family
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set
from merganser.sources.pointers import read_pointer
from tests.support import each, made_once
from tests.tiny_clip import write_clip, write_data_set
from tests.tiny_transformers import write_model

WAIT_S = 240  # a named pipe would be waited for without end


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    place = os.open(path.parent, os.O_RDONLY)  # its address may have 107 letters, and the folder's path has more
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{place}/{path.name}")
    os.close(place)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    os.mkfifo(path.with_name("pipe-beside"))
    path.symlink_to("pipe-beside")


KINDS = {pipe: "a named pipe", unix_socket: "a socket", device: "a device", link: "a named pipe"}


@contextmanager
def in_time() -> Iterator[None]:
    """Raise TimeoutError where the block waits."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still waiting after {WAIT_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(WAIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make(folder: Path) -> None:
    """Write one of everything that is read."""
    write_clip(folder / "clip", "open_clip_model.safetensors")
    write_model(folder / "bert", "bert")
    (folder / "torch").mkdir()
    torch.save({"a": torch.ones(2)}, folder / "torch/pytorch_model.bin")
    write_data_set(folder / "rows", {"test": 3})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "special-files", make)


def fetch_rows(folder: Path) -> None:
    out = folder.parent / "fetched"
    out.mkdir()
    fetch_data_set(folder, out, check_images)


def fetch_model(folder: Path) -> None:
    out = folder.parent / "fetched"
    out.mkdir()
    fetch_checkpoint(folder, out)


READ: list[tuple[str, Callable[[Path], object]]] = [
    ("clip/open_clip_model.safetensors", open_checkpoint),
    ("clip/open_clip_model.safetensors", lambda folder: open_checkpoint(folder / "open_clip_model.safetensors")),
    ("clip/open_clip_config.json", lambda folder: get_family("open_clip").open_network(folder)),
    ("clip/open_clip_config.json", fetch_model),
    ("clip/tokenizer.json", fetch_model),
    ("clip/adapter_config.json", open_model),
    ("clip/model.safetensors.index.json", open_checkpoint),
    ("torch/pytorch_model.bin", open_checkpoint),
    ("bert/config.json", open_checkpoint),
    ("bert/config.json", lambda folder: get_family("encoder").open_network(folder)),
    ("bert/tokenizer_config.json", lambda folder: get_family("encoder").open_network(folder)),
    ("rows/dataset_dict.json", read_headers),
    ("rows/dataset_dict.json", fetch_rows),
    ("rows/test/state.json", fetch_rows),
    ("rows/test/dataset_info.json", read_headers),
    ("rows/test/data-00000-of-00001.arrow", lambda folder: open_split(folder, "test")),
    ("rows/test/data-00000-of-00001.arrow", fetch_rows),
    ("rows/beside", fetch_rows),
    ("bert/params.yaml", lambda folder: load_params(folder / "params.yaml")),
    ("bert/pointer.yaml", lambda folder: read_pointer(folder / "pointer.yaml")),
    ("bert/merge.yaml", lambda folder: read_recipe(folder / "merge.yaml")),
    ("bert/names.txt", lambda folder: _lines("--classes", folder / "names.txt")),
]


@each("kind", KINDS)
@pytest.mark.parametrize(("name", "read"), READ, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_file_is_refused_by_its_path_and_kind(
    tmp_path: Path, made: Path, name: str, read: Callable[[Path], object], kind: Callable[[Path], None]
) -> None:
    place = tmp_path / kind.__name__
    folder = shutil.copytree(made / name.partition("/")[0], place / "it")
    path = folder / name.partition("/")[2]
    path.unlink(missing_ok=True)
    kind(path)
    with in_time(), pytest.raises(InputError, match=KINDS[kind]) as raised:
        read(folder)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("name", ["bert/config.json", "rows/test/state.json", "bert/params.yaml"])
def test_a_folder_where_a_file_is_expected_is_refused(tmp_path: Path, made: Path, name: str) -> None:
    read = next(read for each_name, read in READ if each_name == name)
    folder = shutil.copytree(made / name.partition("/")[0], tmp_path / "it")
    path = folder / name.partition("/")[2]
    path.unlink(missing_ok=True)
    path.mkdir()
    with pytest.raises(InputError, match=rf"{path.name}: a folder, where a file is expected"):
        read(folder)


def test_what_is_made_for_these_tests_is_read_as_it_is(tmp_path: Path, made: Path) -> None:
    fetch_rows(shutil.copytree(made / "rows", tmp_path / "it"))
    assert len(load_from_disk(tmp_path / "fetched")["test"]) == 3
