"""What a model of transformers brings along: all that it needs, and nothing that would run or fall apart."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.sources.fetching import fetch_checkpoint
from tests.transformers_models import load, save_bin, tiny

BESIDE = {
    "chat_template.jinja": "{{ messages }}",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "tokenizer.model": "spm",
    "merges.txt": "a b",
    "vocab.json": "{}",
    "qwen.tiktoken": "YQ== 0",
    "generation_config.json": "{}",
    "preprocessor_config.json": "{}",
    "LICENSE": "as you like",
    "NOTICE.txt": "ours",
    "USE_POLICY.md": "be kind",
    "modules.json": "[]",
    "1_Pooling/config.json": "{}",
    "2_Dense/model.safetensors": "weights",
}
BEHIND = {
    "modeling_own.py": "raise SystemExit",
    "tf_model.h5": "other weights",
    "training_args.bin": "pickled",
    "2_Dense/pytorch_model.bin": "pickled",
}
SILENT = {"README.md": "their card", ".gitattributes": "*"}


def fetched(source: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    fetch_checkpoint(source, out)
    found: dict[str, Any] = json.loads((out / "source.json").read_text())
    return found


def test_all_that_a_model_needs_comes_along_and_the_rest_is_named(tmp_path: Path) -> None:
    tiny("bert").save_pretrained(tmp_path / "hub")
    for name, text in (BESIDE | BEHIND | SILENT).items():
        (tmp_path / "hub" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "hub" / name).write_text(text)
    (tmp_path / "hub/checkpoint-500").mkdir()
    (tmp_path / "hub/checkpoint-500/optimizer.pt").write_text("not looked at")
    described = fetched(tmp_path / "hub", tmp_path / "out")
    assert set(described["files"]) == {*BESIDE, "config.json", "model.safetensors"}
    assert all((tmp_path / "out" / name).read_text() == text for name, text in BESIDE.items())
    assert described["left_out"] == sorted(BEHIND)


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("llama, tied", {"lm_head.weight": "model.embed_tokens.weight"}),
        ("gpt2", {"lm_head.weight": "transformer.wte.weight"}),
        ("t5", {f"{side}.weight": "shared.weight" for side in ("encoder.embed_tokens", "decoder.embed_tokens")}
        | {"lm_head.weight": "shared.weight"}),
        ("llama, untied", None),
    ],
)  # fmt: skip
def test_tied_weights_of_torch_files_are_kept_once(tmp_path: Path, name: str, tied: dict[str, str] | None) -> None:
    model = tiny(name)
    save_bin(model, tmp_path / "hub")
    assert fetched(tmp_path / "hub", tmp_path / "out").get("tied") == tied
    assert set(open_checkpoint(tmp_path / "out").names) == set(model.state_dict()) - set(tied or {})
    loaded = load(model, tmp_path / "out")
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in model.state_dict().items())


def test_a_second_name_in_a_shard_of_its_own_is_left_out_with_its_shard(tmp_path: Path) -> None:
    model = tiny("gpt2")
    model.save_pretrained(tmp_path / "hub", max_shard_size="8KB")
    index = json.loads((tmp_path / "hub/model.safetensors.index.json").read_text())
    count = len(set(index["weight_map"].values()))
    index["weight_map"]["lm_head.weight"] = "model-99999-of-99999.safetensors"
    save_tensors(tmp_path / "hub/model-99999-of-99999.safetensors", {"lm_head.weight": model.lm_head.weight.data})
    (tmp_path / "hub/model.safetensors.index.json").write_text(json.dumps(index))
    described = fetched(tmp_path / "hub", tmp_path / "out")
    assert described["tied"] == {"lm_head.weight": "transformer.wte.weight"}
    assert f"model-{count:05}-of-{count:05}.safetensors" in described["files"]
    assert sum(name.startswith("model-") for name in described["files"]) == count
    load(model, tmp_path / "out")


def test_names_that_share_memory_are_one_weight_whatever_they_are_called(tmp_path: Path) -> None:
    model = tiny("bert")
    weight = model.bert.embeddings.word_embeddings.weight.data
    state = model.state_dict() | {"head.a": weight, "head.b": weight.clone(), "head.flat": weight.view(-1)}
    save_bin(model, tmp_path / "hub", state)
    described = fetched(tmp_path / "hub", tmp_path / "out")
    assert described["tied"] == {"head.a": "bert.embeddings.word_embeddings.weight"}


def test_second_names_that_differ_or_that_the_configuration_unties_stay(tmp_path: Path) -> None:
    model = tiny("llama, tied")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["lm_head.weight"][-1, -1] += 1
    save_bin(model, tmp_path / "differs", state)
    assert "tied" not in fetched(tmp_path / "differs", tmp_path / "one")
    model.config.tie_word_embeddings = False
    save_bin(model, tmp_path / "untied")
    assert "tied" not in fetched(tmp_path / "untied", tmp_path / "two")
    assert "lm_head.weight" in open_checkpoint(tmp_path / "two")


def test_constants_of_older_versions_are_no_parameters(tmp_path: Path) -> None:
    model = tiny("gpt2")
    constants = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        "transformer.rotary_emb.inv_freq": torch.ones(4),
        "transformer.embeddings.position_ids": torch.arange(32)[None],
    }
    save_bin(model, tmp_path / "hub", model.state_dict() | constants)
    described = fetched(tmp_path / "hub", tmp_path / "out")
    assert sorted(described["constants"]) == sorted(constants)
    load(model, tmp_path / "out")


def test_torch_shards_become_safetensors_shards(tmp_path: Path) -> None:
    model = tiny("bert")
    state = model.state_dict()
    files = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    model.config.save_pretrained(tmp_path / "hub")
    for file in set(files.values()):
        torch.save({name: state[name] for name in state if files[name] == file}, tmp_path / "hub" / file)
    index = {"metadata": {"total_size": 0}, "weight_map": files}
    (tmp_path / "hub/pytorch_model.bin.index.json").write_text(json.dumps(index))
    described = fetched(tmp_path / "hub", tmp_path / "out")
    assert {name for name in described["files"] if "safetensors" in name} == {
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    }
    load(model, tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
def test_a_configuration_with_code_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    tiny("bert").save_pretrained(tmp_path / "hub")
    (tmp_path / "hub" / name).write_text('{"auto_map": {"AutoModel": "modeling_own.Own"}}')
    with pytest.raises(InputError, match=rf"{name}: 'auto_map' asks for code that came with the checkpoint"):
        fetched(tmp_path / "hub", tmp_path / "out")
