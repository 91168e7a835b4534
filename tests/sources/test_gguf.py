"""Models in llama.cpp's format: read as transformers reads them, dequantised."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.headers import check_sources
from merganser.config.params import Params
from merganser.config.recipes import RECIPE, read_recipe
from merganser.errors import InputError
from merganser.sources.installing import check_gguf, write_dequantised
from merganser.tasks.fetch import fetch_model
from tests.merges import merge_checkpoints
from tests.transformers_models import save_models, tiny

CONFIG = {
    **{"context_length": 32, "embedding_length": 16, "block_count": 2, "feed_forward_length": 32, "head_count": 2},
    **{"head_count_kv": 1, "layer_norm_rms_eps": 1e-6, "rope_dimension_count": 8, "vocab_size": 40},
}


def write(path: Path, leave_out: str | None = None, **settings: float) -> dict[str, torch.Tensor]:
    """Write a tiny Llama as llama.cpp has it, without one tensor and with other settings; return its tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for key, value in (CONFIG | settings).items():
        getattr(writer, f"add_{key}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    state = tiny("llama, untied", 3).state_dict()
    for name, value in state.items():
        heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2])
        array = value.numpy()
        if heads:  # llama.cpp has the halves of a head's rotations side by side
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if name != leave_out:
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return state


def test_a_gguf_model_is_merged_with_others_and_named(tmp_path: Path) -> None:
    state = write(tmp_path / "m.gguf")
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    notes = merge_checkpoints("average", {}, paths["base"], {"a": tmp_path / "m.gguf"}, tmp_path / "out", device="cpu")
    merged = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.allclose(merged[name], value, atol=1e-6) for name, value in state.items())
    assert any(note.startswith("a: read by transformers from m.gguf, dequantised to float32") for note in notes)
    assert not any("rms_norm_eps" in note for note in notes)  # the same number in float32
    recipe = read_recipe(tmp_path / "out" / RECIPE)
    assert recipe.models["a"].path == "../m.gguf"
    assert recipe.models["a"].sha256.keys() == {"m.gguf"}


def test_a_folder_with_nothing_but_a_gguf_file_is_a_base_too(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write(tmp_path / "base/m.gguf")
    model = save_models(tmp_path / "models", "llama, untied", tasks=1)["task0"]
    merge_checkpoints("average", {}, tmp_path / "base", {"a": model}, tmp_path / "out", device="cpu")
    merged, theirs = load_file(tmp_path / "out/model.safetensors"), load_file(model / "model.safetensors")
    assert all(torch.allclose(merged[name], value, atol=1e-6) for name, value in theirs.items())


def test_a_stage_fetches_gguf_dequantised(tmp_path: Path) -> None:
    state = write(tmp_path / "m.gguf")
    fetch_model(tmp_path / "m.gguf", tmp_path / "fetched")
    assert all(torch.equal(open_checkpoint(tmp_path / "fetched").read(name), value) for name, value in state.items())


def test_gguf_and_a_checkpoint_of_lightnings_are_sources_of_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf")
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    torch.save({"state_dict": load_file(paths["task0"] / "model.safetensors"), "epoch": 3}, tmp_path / "last.ckpt")
    tasks = {name: {"source": name, "kind": "unmeasured", "data": {"source": name}} for name in ("m.gguf", "last.ckpt")}
    base = {"source": paths["base"].name, "family": "causal"}
    params = Params.model_validate(
        {"base": base, "tasks": tasks, "methods": {"x": {"method": "ties", "reads": "deltas"}}}
    )
    assert check_sources(params, tmp_path, lambda path: False) == []
    fetch_model(tmp_path / "last.ckpt", tmp_path / "fetched")
    assert open_checkpoint(tmp_path / "fetched").names == open_checkpoint(paths["task0"]).names
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(InputError, match=r"^tasks.m.gguf.source: .*m\.gguf: a GGUF file.*pip install"):
        check_sources(params, tmp_path, lambda path: False)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\3\0\0\0" + bytes(400))
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    with pytest.raises(InputError, match=r"m\.gguf: transformers cannot read it"):
        merge_checkpoints("average", {}, paths["base"], {"a": tmp_path / "m.gguf"}, tmp_path / "out", device="cpu")


QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leave_out": QUERY}, f"lacks {QUERY}, and transformers would draw it at random"),
        ({"block_count": 3}, r"lacks model\.layers\.2\..*at random"),
        ({"block_count": 1}, r"2,336 of its values have no place in LlamaForCausalLM, and would be left out"),
        ({"vocab_size": 80}, r"lm_head\.weight has the shape \[40, 16\], and \[80, 16\] by its metadata"),
        ({"block_count": 10**6}, r"num_hidden_layers is 1000000, and no model has more than 1,000"),
    ],
)
def test_a_model_that_is_not_all_of_its_file_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    write(tmp_path / "m.gguf", **changes)
    with pytest.raises(InputError, match=rf"m\.gguf: {reason}"):
        write_dequantised(tmp_path / "m.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_counts_that_the_file_cannot_hold_are_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    start, key = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1), struct.pack("<Q1s", 1, b"a")
    for kind, count, reason in ((0, 2**63, "more than 4,194,304 values"), (0, 99, "ends within"), (9, 1, "of type 9")):
        (tmp_path / "m.gguf").write_bytes(start + key + struct.pack("<IIQ", 9, kind, count))
        with pytest.raises(InputError, match=reason):
            check_gguf(tmp_path / "m.gguf")


def test_tensors_at_one_place_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    place = content.index(b"blk.1.attn_q.weight") + len("blk.1.attn_q.weight") + 4 + 2 * 8 + 4
    content[place : place + 8] = bytes(8)
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(InputError, match="overlaps another one"):
        check_gguf(tmp_path / "m.gguf")


def test_without_the_package_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(400))
    paths = save_models(tmp_path, "llama, untied", tasks=1)
    with pytest.raises(InputError, match=r"m\.gguf: a GGUF file.*pip install 'merganser\[gguf\]'"):
        merge_checkpoints("average", {}, paths["base"], {"a": tmp_path / "m.gguf"}, tmp_path / "out", device="cpu")
