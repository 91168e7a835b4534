"""Of several files of weights in a folder the one is read that `from_pretrained` reads, or all are refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from merganser.checkpoints.reading import open_checkpoint, open_stored
from merganser.checkpoints.vocabulary.writing import write_linked
from merganser.errors import InputError
from merganser.sources.fetching import fetch_checkpoint
from merganser.sources.named import read_files
from tests.merges import merge_checkpoints

SIZES = {"n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 4, "vocab_size": 4}
ONE = "wte.weight"  # which tells the models apart
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    GPT2Model(GPT2Config(**SIZES)).save_pretrained(folder)
    return folder


class Folder:
    """A model's folder that gets one file of weights after another, each with a number of its own."""

    def __init__(self, model: Path, place: Path) -> None:
        self.path, self.state, self.count = place, load_file(model / "model.safetensors"), 0
        place.mkdir()
        shutil.copyfile(model / "config.json", place / "config.json")

    def next(self) -> State:
        self.count += 1
        return self.state | {ONE: torch.full((4, 4), float(self.count))}

    def add(self, name: str) -> None:
        """Add a file of weights, or an index and two shards where it says."""
        stem, _, ending = name.removesuffix(".index.json").rpartition(".")
        save: Callable[..., None] = save_file if ending == "safetensors" else torch.save
        (self.path / name).parent.mkdir(exist_ok=True)
        state = self.next()
        if not name.endswith(".index.json"):
            save(state, self.path / name)
            return
        files = {key: f"{stem}-{1 + (key == ONE)}-of-2.{ending}" for key in state}
        for file in set(files.values()):
            save({key: state[key] for key in state if files[key] == file}, self.path / file)
        (self.path / name).write_text(json.dumps({"metadata": {}, "weight_map": files}))

    def say(self, **more: object) -> None:
        """Add settings to the configuration."""
        config = json.loads((self.path / "config.json").read_text())
        (self.path / "config.json").write_text(json.dumps(config | more))

    def read(self) -> float:
        return float(open_checkpoint(self.path).read(ONE)[0, 0])

    def by_transformers(self) -> float:
        return float(GPT2Model.from_pretrained(self.path).wte.weight[0, 0].detach())


ALL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
OTHERS = ("model.fp16.safetensors", "consolidated.safetensors", "consolidated.safetensors.index.json", "other.bin")


@pytest.mark.parametrize("first", range(len(ALL)))
def test_the_file_is_read_that_transformers_reads(first: int, model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    for name in (*ALL[first:], *OTHERS, "open_clip_model.safetensors"):
        folder.add(name)
    assert folder.read() == folder.by_transformers() == 1


@pytest.mark.parametrize("name", ["weights/part.safetensors", "mine.safetensors", "sub/../mine.safetensors"])
def test_transformers_weights_of_the_configuration_come_first(name: str, model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    (folder.path / "sub").mkdir()
    folder.add("model.safetensors")
    folder.add(name)
    folder.say(transformers_weights=name)
    assert folder.read() == folder.by_transformers() == 2
    assert Path(name).name in {Path(file).name for file in read_files(folder.path)}
    assert "model.safetensors" not in read_files(folder.path)


def test_an_index_that_transformers_weights_names_has_shards_from_the_folder_on(model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    folder.add("model.safetensors")
    folder.add("weights/mine.safetensors.index.json")
    folder.say(transformers_weights="weights/mine.safetensors.index.json")
    assert folder.read() == folder.by_transformers() == 2


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("pytorch_model.bin", "neither a safetensors file nor an index"),
        (7, "neither a safetensors file nor an index"),
        ("gone.safetensors", "gone.safetensors is not there, and transformers loads no other file"),
        ("../it2/model.safetensors", "outside its folder"),
        ("/etc/model.safetensors", "outside its folder"),
    ],
)
def test_what_transformers_would_not_load_is_refused_by_the_key(
    named: object, said: str, model: Path, tmp_path: Path
) -> None:
    folder = Folder(model, tmp_path / "it")
    folder.add("model.safetensors")
    folder.add("pytorch_model.bin")
    folder.say(transformers_weights=named)
    with pytest.raises(InputError, match=said):
        open_checkpoint(folder.path)
    with pytest.raises(Exception, match=r"transformers|file|attribute"):
        GPT2Model.from_pretrained(folder.path)


def test_a_merge_and_what_is_fetched_have_the_usual_name_and_load(model: Path, tmp_path: Path) -> None:
    base, task = (Folder(model, tmp_path / name) for name in ("base", "task"))
    for folder in (base, task):
        folder.add("model.safetensors")
        folder.add("weights/mine.safetensors.index.json")
        folder.say(transformers_weights="weights/mine.safetensors.index.json")
    notes = merge_checkpoints("average", {}, base.path, {"t": task.path}, tmp_path / "out", device="cpu")
    assert float(GPT2Model.from_pretrained(tmp_path / "out").wte.weight[0, 0].detach()) == 2
    assert "left out of the base's folder: model.safetensors" in notes
    assert "t: weights that are not read: model.safetensors" in notes
    (tmp_path / "fetched").mkdir()
    left = fetch_checkpoint(base.path, tmp_path / "fetched")
    assert "model.safetensors" in left["left_out"]
    assert float(GPT2Model.from_pretrained(tmp_path / "fetched").wte.weight[0, 0].detach()) == 2


def test_shards_in_a_folder_within_are_read_merged_and_fetched(model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    folder.add("model.safetensors.index.json")
    index = folder.path / "model.safetensors.index.json"
    moved = json.loads(index.read_text())
    (folder.path / "weights").mkdir()
    for file in set(moved["weight_map"].values()):
        (folder.path / file).rename(folder.path / "weights" / file)
    moved["weight_map"] = {name: f"weights/{file}" for name, file in moved["weight_map"].items()}
    index.write_text(json.dumps(moved))
    assert folder.read() == folder.by_transformers() == 1
    notes = merge_checkpoints("average", {}, folder.path, {"t": folder.path}, tmp_path / "out", device="cpu")
    assert not [note for note in notes if "left out of the base's folder" in note]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    (tmp_path / "fetched").mkdir()
    fetch_checkpoint(folder.path, tmp_path / "fetched")
    for place in ("out", "fetched"):
        assert float(GPT2Model.from_pretrained(tmp_path / place).wte.weight[0, 0].detach()) == 1


@pytest.mark.parametrize("name", ["../it2/part.safetensors", "weights/../../part.safetensors", "/etc/part.safetensors"])
def test_a_shard_outside_the_folder_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    (folder.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {ONE: name}}))
    with pytest.raises(InputError, match=r"index\.json: names the file .* outside its folder; only files in .* are"):
        open_checkpoint(folder.path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("model.fp16.safetensors", "model.bf16.safetensors"), "several files of weights"),
        (("a.safetensors", "b.safetensors", "c.bin"), "give one of them: a.safetensors, b.safetensors$"),
        (("a.pt", "b.pt"), "give one of them: a.pt, b.pt$"),
        (("a.safetensors.index.json", "b.safetensors.index.json"), "several files of weights"),
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), "shards without their index"),
    ],
)
def test_files_of_which_no_reader_takes_one_are_refused_by_name(
    files: tuple[str, ...], said: str, model: Path, tmp_path: Path
) -> None:
    folder = Folder(model, tmp_path / "it")
    for name in files:
        folder.add(name)
    with pytest.raises(InputError, match=said):
        open_checkpoint(folder.path)
    with pytest.raises(OSError, match="no file named"):
        folder.by_transformers()


def test_what_training_leaves_is_not_taken_for_weights(model: Path, tmp_path: Path) -> None:
    folder = Folder(model, tmp_path / "it")
    folder.add("finetuned.pt")
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        (folder.path / name).write_bytes(b"")
    assert folder.read() == 1


def test_shards_of_one_name_in_two_folders_can_be_linked(tmp_path: Path) -> None:
    """As a merge does that writes models in one vocabulary."""
    files = {"a.weight": "one/part.safetensors", "b.weight": "two/part.safetensors"}
    for number, (name, file) in enumerate(files.items()):
        (tmp_path / "it" / file).parent.mkdir(parents=True)
        save_file({name: torch.full((2,), float(number))}, tmp_path / "it" / file)
    (tmp_path / "it/model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "linked").mkdir()
    write_linked(open_stored(tmp_path / "it"), {}, tmp_path / "linked")
    opened = open_stored(tmp_path / "linked")
    assert {name: opened.read(name).tolist() for name in opened.names} == {"a.weight": [0, 0], "b.weight": [1, 1]}
