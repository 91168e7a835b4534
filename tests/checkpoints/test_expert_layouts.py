"""Experts in stacks in one model and one by one in another are merged as transformers loads both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser.checkpoints.matching import with_experts_of
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.standalone.reconstruct import write_model_of
from tests.merges import merge_checkpoints

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 12}
MORE = {"num_key_value_heads": 1, "intermediate_size": 12, "moe_intermediate_size": 4, "num_experts_per_tok": 2}
OF_DEEPSEEK = {"first_k_dense_replace": 1, "n_routed_experts": 3, "n_group": 1, "topk_group": 1, "kv_lora_rank": 4}
HEADS = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "q_lora_rank": None, "n_shared_experts": 1}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 3},
    "qwen2_moe": {"num_experts": 3, "shared_expert_intermediate_size": 4},
    "qwen3_moe": {"num_experts": 3, "head_dim": 4},
    "deepseek_v3": {**OF_DEEPSEEK, **HEADS, "num_key_value_heads": 2},
}
Paths = tuple[Path, Path]  # one by one, and in stacks


def saved(kind: str, folder: Path, seed: int) -> Paths:
    """Save a model as transformers does, and as its state is in memory."""
    torch.manual_seed(seed)
    config = tf.CONFIG_MAPPING[kind](**{**SIZES, **MORE, **MODELS[kind]})
    model = tf.AutoModelForCausalLM.from_config(config)
    for value in model.parameters():
        value.data = torch.randn_like(value)
    apart, stacked = folder / f"apart{seed}", folder / f"stacked{seed}"
    model.save_pretrained(apart)
    stacked.mkdir()
    save_file({name: value.clone() for name, value in model.state_dict().items()}, stacked / "model.safetensors")
    (stacked / "config.json").write_text((apart / "config.json").read_text())
    return apart, stacked


def merged(folder: Path, base: Path, *tasks: Path, method: str = "average") -> dict[str, Tensor]:
    out = folder / f"out{len(list(folder.iterdir()))}"
    models = {f"task{number}": path for number, path in enumerate(tasks)}
    merge_checkpoints(method, {}, base, models, out, device="cpu")
    return load_file(out / "model.safetensors")


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "deepseek_v3"])
def test_a_task_is_read_as_its_base_has_the_experts(kind: str, tmp_path: Path) -> None:
    (base, base_stacked), (one, one_stacked), (two, two_stacked) = (saved(kind, tmp_path, seed) for seed in range(3))
    apart, stacked = merged(tmp_path, base, one, two), merged(tmp_path, base_stacked, one_stacked, two_stacked)
    assert apart.keys() != stacked.keys()
    assert equal(merged(tmp_path, base, one_stacked, two), apart)
    assert equal(merged(tmp_path, base_stacked, one, two_stacked), stacked)
    model = tf.AutoModelForCausalLM.from_pretrained(base)
    state = model.state_dict()
    wanted = [tf.AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (one_stacked, two)]
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/config.json").write_text((base / "config.json").read_text())
    save_file(merged(tmp_path, base, one_stacked, two), tmp_path / "mixed/model.safetensors", {"format": "pt"})
    found = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "mixed").state_dict()
    for name in state:
        torch.testing.assert_close(found[name], (wanted[0][name] + wanted[1][name]) / 2)


def test_matrices_of_experts_are_merged_as_such_in_either_layout(tmp_path: Path) -> None:
    (base, base_stacked), (one, one_stacked), (two, two_stacked) = (
        saved("qwen3_moe", tmp_path, seed) for seed in range(3)
    )
    assert equal(
        merged(tmp_path, base, one_stacked, two, method="tsv_m"), merged(tmp_path, base, one, two, method="tsv_m")
    )
    found = merged(tmp_path, base_stacked, one, two_stacked, method="tsv_m")
    assert equal(found, merged(tmp_path, base_stacked, one_stacked, two_stacked, method="tsv_m"))


def test_without_a_base_experts_are_averaged_in_the_layout_of_the_first_model(tmp_path: Path) -> None:
    (one, one_stacked), (two, _) = (saved("qwen3_moe", tmp_path, seed) for seed in range(2))
    for name, first in (("plain", one), ("mixed", one_stacked)):
        models = {"b": first, "a": two}
        merge_checkpoints("average", {}, None, models, tmp_path / name, device="cpu")
    found, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("mixed", "plain"))
    assert equal(found, wanted)


def test_one_expert_is_read_without_the_others(tmp_path: Path) -> None:
    (base, base_stacked), (one, one_stacked) = (saved("mixtral", tmp_path, seed) for seed in range(2))
    shown = with_experts_of(open_checkpoint(base), open_checkpoint(one_stacked))
    name, state = "model.layers.1.block_sparse_moe.experts.2.w1.weight", load_file(one / "model.safetensors")
    assert torch.equal(shown.read(name), state[name])
    shown = with_experts_of(open_checkpoint(base_stacked), open_checkpoint(one))
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    assert torch.equal(shown.read(stack), load_file(one_stacked / "model.safetensors")[stack])


def test_a_tasks_own_model_is_rebuilt_with_the_experts_once(tmp_path: Path) -> None:
    (base, _), (one, one_stacked), (two, _) = (saved("qwen2_moe", tmp_path, seed) for seed in range(3))
    merge_checkpoints("individual", {}, base, {"one": one_stacked, "two": two}, tmp_path / "out", device="cpu")
    write_model_of(tmp_path / "out", "one", tmp_path / "own")
    found, wanted = (load_file(path / "model.safetensors") for path in (tmp_path / "own", one))
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("stacked_base", [True, False])
def test_experts_of_a_model_that_transformers_does_not_know_are_refused_with_the_cause(
    stacked_base: bool, tmp_path: Path
) -> None:
    apart = {f"layers.0.mlp.experts.{number}.up_proj.weight": torch.ones(4, 2) for number in range(3)}
    stacked = {"layers.0.mlp.experts.up_proj": torch.ones(3, 4, 2)}
    for name, state in (("base", apart), ("task", stacked)):
        folder = tmp_path / ("task" if name == "base" and stacked_base else "base" if stacked_base else name)
        folder.mkdir()
        save_file(state | {"norm.weight": torch.ones(2)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "a_model_of_ours"}))
    with pytest.raises(InputError) as refusal:
        merged(tmp_path, tmp_path / "base", tmp_path / "task")
    cause, remedy = str(refusal.value).splitlines()
    first, second = ("one by one", "in a stack") if stacked_base else ("in a stack", "one by one")
    assert f"task0: its experts are stored {first} (layers.0.mlp.experts." in cause
    assert f"those of the base {second} (layers.0.mlp.experts." in cause
    assert remedy.endswith("from_pretrained(FOLDER).save_pretrained(OUT)")
