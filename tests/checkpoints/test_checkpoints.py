import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import spec_of
from merganser.checkpoints.writing import save_tensors, write_checkpoint
from merganser.errors import InputError

STATE = {
    "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a": torch.arange(3, dtype=torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


def test_what_is_written_is_read_back_by_the_reference_library(tmp_path: Path) -> None:
    save_tensors(tmp_path / "m.safetensors", STATE, metadata='{"k":1}')
    loaded = load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == STATE.keys()
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)


def test_the_header_alone_gives_names_shapes_and_dtypes(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert checkpoint.names == tuple(sorted(STATE))
    assert {name: checkpoint.spec(name) for name in STATE} == {name: spec_of(t) for name, t in STATE.items()}
    assert all(torch.equal(checkpoint.read(name), STATE[name]) for name in STATE)


def test_the_order_of_writing_does_not_change_the_bytes(tmp_path: Path) -> None:
    specs = {name: spec_of(t) for name, t in STATE.items()}
    write_checkpoint(tmp_path / "one", specs, STATE.items())
    write_checkpoint(tmp_path / "two", dict(reversed(specs.items())), reversed(STATE.items()))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    specs = {name: spec_of(t) for name, t in STATE.items()}
    with pytest.raises(ValueError, match="announced and never written"):
        write_checkpoint(tmp_path / "m.safetensors", specs, [("a", STATE["a"])])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_and_never_written_into(tmp_path: Path) -> None:
    path, link = tmp_path / "m.safetensors", tmp_path / "linked"
    save_tensors(path, {"a": torch.zeros(2)})
    link.hardlink_to(path)
    save_tensors(path, {"a": torch.ones(2)})
    assert torch.equal(open_checkpoint(link).read("a"), torch.zeros(2))


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model-1.safetensors", {"a": torch.zeros(2)})
    save_tensors(tmp_path / "model-2.safetensors", {"b": torch.ones(3)})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names == ("a", "b")
    assert torch.equal(checkpoint.read("b"), torch.ones(3))


def test_a_tensor_in_two_shards_is_read_where_both_are_one_and_refused_where_not(tmp_path: Path) -> None:
    """Where they differ transformers takes the last one, and others that of the index."""
    save_tensors(tmp_path / "model-1.safetensors", {"a": torch.zeros(2), "c": torch.ones(1)})
    save_tensors(tmp_path / "model-2.safetensors", {"b": torch.ones(3), "c": torch.ones(1)})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_checkpoint(tmp_path).names == ("a", "b", "c")
    save_tensors(tmp_path / "model-2.safetensors", {"b": torch.ones(3), "c": torch.zeros(1)})
    with pytest.raises(InputError, match=r"model-1\.safetensors and model-2\.safetensors hold other values of c"):
        open_checkpoint(tmp_path)


def test_torch_weights_are_loaded_as_plain_weights(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "pytorch_model.bin")
    assert torch.equal(open_checkpoint(tmp_path).read("a"), torch.ones(2))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.save({"a": Hostile()}, p / "pytorch_model.bin"), "plain weights"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "not a safetensors file"),
        (lambda p: (p / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
        (lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}"), "not a safetensors file"),
        (lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"), "header is corrupt"),
        (lambda p: (p / "x.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}'), "outside its folder"),
        (lambda p: (p / "x.safetensors.index.json").write_text('{"weight_map": {"a": "x"}}'), "is missing"),
        (lambda p: (p / "x.safetensors.index.json").write_text("[1]"), "not an index"),
        (lambda p: None, "no checkpoint in this folder"),
    ],
)
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(InputError, match=message) as refusal:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_truncated_file_is_refused_from_its_header(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors(path, STATE)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match="truncated"):
        open_checkpoint(path)


@pytest.mark.drill
def test_a_tensor_larger_than_one_read_of_the_system_is_read_whole(tmp_path: Path) -> None:
    size = 2**31 + 16  # bytes; Linux gives at most 2**31 - 4096 at a time
    header = json.dumps({"large": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "large.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.seek(size - 3, 1)  # the file has a hole there
        file.write(b"end")
    assert open_checkpoint(tmp_path / "large.safetensors").read("large")[-4:].tolist() == [0, *b"end"]
