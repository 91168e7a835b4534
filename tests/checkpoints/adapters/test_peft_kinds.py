"""Adapters of all of PEFT's kinds are read as PEFT merges them, or refused by name."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from safetensors.torch import load_file, save_file

from merganser.checkpoints.adapters.files import Adapter, open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.errors import InputError
from merganser.inputs.deltas import DeltaFile, extract
from merganser.inputs.model_deltas import open_models
from tests.checkpoints.adapters.peft_kinds import (
    SETTINGS,
    configured,
    merged_by_peft,
    merged_here,
    model_of,
    write_adapter,
)
from tests.command_line.light import run_light
from tests.merges import merge_checkpoints

pytestmark = pytest.mark.filterwarnings("ignore")
# kinds that PEFT merges and that are not read, with what is said of them
NOT_READ = {"FROD": "needs the weights of all layers at once", "UNILORA": "none of its tensors is of a layer"}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
MERGED: dict[str, dict[str, Any]] = {
    "LORA": {"r": 2, "target_modules": ["q_proj"], "target_parameters": EXPERTS},
    "LOKR": {"target_modules": ["q_proj", "v_proj"]},
    "IA3": {"target_modules": ["k_proj"], "feedforward_modules": []},
}
# kinds of which not even an adapter can be made by itself: XLORA mixes several
OF_SEVERAL = ("XLORA",)


def assert_merged_as_by_peft(folder: Path, model: str) -> None:
    wanted, (found, changed) = merged_by_peft(folder, model), merged_here(folder)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (found[name] - value).abs().max() <= 1e-6 * value.abs().max(), name
    assert changed


@pytest.mark.parametrize("kind", [kind.value for kind in PEFT_TYPE_TO_TUNER_MAPPING if kind not in OF_SEVERAL])
def test_each_kind_in_pefts_registry_is_merged_as_peft_does_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    """A kind that a later PEFT brings is tried with its defaults; one that needs more has a row in SETTINGS."""
    write_adapter(tmp_path, "llama", kind, **SETTINGS.get(kind, {}))
    try:
        merged_by_peft(tmp_path, "llama")
    except NotImplementedError:
        with pytest.raises(InputError, match=f"{kind} .*cannot be merged: leave it out"):
            merged_here(tmp_path)
        return
    if kind in NOT_READ:
        with pytest.raises(InputError, match=NOT_READ[kind]):
            merged_here(tmp_path)
        return
    assert_merged_as_by_peft(tmp_path, "llama")


def test_a_mixture_of_adapters_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, "llama", "LORA")
    configured(tmp_path, peft_type="XLORA")
    with pytest.raises(InputError, match=r"XLORA mixes several adapters .* each of them, by its own folder"):
        merged_here(tmp_path)


def test_a_folder_of_adapters_is_refused_with_their_folders(tmp_path: Path) -> None:
    """As PEFT writes adapters that are not called `default`."""
    write_adapter(tmp_path, "llama", "LOHA")
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "adapter", tmp_path / "adapters" / name)
    with pytest.raises(InputError, match="several adapters, each in its own folder; give one of them: one, two"):
        open_model(tmp_path / "adapters")


def test_merges_of_adapters_that_peft_computes_are_those_of_the_models_that_it_merges(tmp_path: Path) -> None:
    """Also where one is low-rank, where a task is one expert of a stack, and through the pipeline's deltas."""
    models = {}
    for number, (kind, settings) in enumerate(MERGED.items()):
        write_adapter(tmp_path / kind, "gpt-oss", kind, **settings)
        merged_by_peft(tmp_path / kind, "gpt-oss")
        models[f"{number}"] = tmp_path / kind
    base = next(iter(models.values())) / "base"
    for kind in ("adapter", "merged"):
        given = {name: folder / kind for name, folder in models.items()}
        merge_checkpoints("task_arithmetic", {"scaling": 0.5}, base, given, tmp_path / f"of-{kind}", device="cpu")
    one, other = (open_checkpoint(tmp_path / f"of-{kind}") for kind in ("adapter", "merged"))
    assert all(torch.allclose(one.read(name), other.read(name), atol=1e-6) for name in other.names)
    extract(open_for_merging(base), open_model(models["0"] / "adapter"), ParameterRules(), "0", tmp_path / "deltas")
    deltas, merged = DeltaFile(tmp_path / "deltas"), open_for_merging(models["0"] / "merged")
    start = open_for_merging(base)
    for name in (name for name in deltas.kinds if deltas.is_touched(name)):
        wanted = (merged.read(name) - start.read(name)).reshape(deltas.shape(name))
        assert torch.allclose(deltas.delta(name), wanted, atol=1e-6), name


LORAS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"use_dora": True, "lora_alpha": -3, "rank_pattern": {"v_proj": 2}}),
    ("llama", {"use_dora": True, "bias": "lora_only"}),
    ("llama", {"init_lora_weights": "pissa"}),
    ("llama", {"init_lora_weights": "olora", "use_rslora": True}),
    ("llama", {"init_lora_weights": "mica"}),
    ("llama", {"kasa_config": {}}),
    ("llama", {"monteclora_config": {}}),
    (
        "llama",
        {
            "target_modules": ["q_proj"],
            "use_bdlora": {"target_modules_bd_a": ["q_proj"], "target_modules_bd_b": [], "nblocks": 2},
        },
    ),
    ("llama", {"lora_bias": True, "target_modules": ["q_proj", "k_proj"]}),
    ("llama", {"trainable_token_indices": [1, 5, 7], "modules_to_save": ["lm_head"]}),
    ("llama", {"trainable_token_indices": {"embed_tokens": [2], "lm_head": [1, 3]}}),
    ("twelve layers, tied", {"trainable_token_indices": [1, 5, 7]}),
    ("twelve layers, tied", {"target_modules": ["embed_tokens"], "use_dora": True}),
    ("bert", {"target_modules": ["word_embeddings", "query"], "use_dora": True, "bias": "all"}),
    ("gpt2", {"target_modules": ["c_attn", "c_fc"], "use_dora": True}),
    ("gpt2", {"target_modules": ["c_attn"], "init_lora_weights": "pissa"}),
    ("vit", {"target_modules": ["projection", "q_proj"], "use_dora": True}),
    ("gpt-oss", {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "experts.down_proj"]}),
    ("gpt-oss", {"target_modules": ["q_proj"], "target_parameters": ["down_proj"], "rank_pattern": {"down_proj": 3}}),
]


@pytest.mark.parametrize(("model", "settings"), LORAS, ids=str)
def test_what_is_more_than_a_low_rank_update_is_merged_as_peft_does(
    model: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    write_adapter(tmp_path, model, "LORA", **{"r": 4} | settings)
    assert_merged_as_by_peft(tmp_path, model)


OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "VERA", {"target_modules": ["c_attn", "c_proj"], "r": 4, "save_projection": False}),
    ("gpt2", "IA3", {"target_modules": ["c_attn", "mlp.c_proj"], "feedforward_modules": ["mlp.c_proj"]}),
    ("gpt2", "FOURIERFT", {"target_modules": ["c_attn"], "n_frequency": 20}),
    (
        "bert",
        "LOKR",
        {"target_modules": ["query", "value"], "rank_pattern": {"value": 2}, "alpha_pattern": {"query": 3}},
    ),
    ("bert", "LN_TUNING", {"target_modules": ["LayerNorm"]}),
    ("bert", "BOFT", {"target_modules": ["query"], "boft_block_size": 4, "bias": "boft_only"}),
    ("vit", "LOHA", {"target_modules": ["projection", "q_proj"], "modules_to_save": ["classifier"]}),
    ("vit", "OFT", {"target_modules": ["projection"], "oft_block_size": 4, "r": 0}),
    ("gpt-oss", "IA3", {"target_modules": ["k_proj"], "feedforward_modules": []}),
    ("twelve layers, tied", "TINYLORA", {"target_modules": ["q_proj", "o_proj"], "r": 2, "u": 3, "weight_tying": 0.5}),
    ("twelve layers, tied", "HRA", {"target_modules": r".*\.(0|3|10)\.self_attn\.q_proj", "r": 2}),
    ("twelve layers, tied", "RANDLORA", {"r": 4, "layers_to_transform": [2, 10], "save_projection": False}),
    ("twelve layers, tied", "TRAINABLE_TOKENS", {"token_indices": [1, 7], "target_modules": "model.embed_tokens"}),
]


@pytest.mark.parametrize(("model", "kind", "settings"), OTHERS, ids=str)
def test_layers_of_every_class_and_what_they_share_are_read_as_by_peft(
    model: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    write_adapter(tmp_path, model, kind, **settings)
    assert_merged_as_by_peft(tmp_path, model)


@pytest.mark.parametrize("kind", ["LOKR", "IA3", "VERA", "LN_TUNING", "OSF"])
def test_a_base_that_transformers_does_not_know_is_read_by_its_names_and_shapes(kind: str, tmp_path: Path) -> None:
    write_adapter(tmp_path, "llama", kind, **SETTINGS.get(kind, {}))
    wanted = merged_by_peft(tmp_path, "llama")
    (tmp_path / "base/config.json").unlink()
    found, _ = merged_here(tmp_path)
    assert all((found[name] - value).abs().max() <= 1e-6 * value.abs().max() for name, value in wanted.items())


def test_where_the_order_of_layers_matters_and_is_not_known_the_adapter_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, "llama", "TINYLORA", **SETTINGS["TINYLORA"])
    (tmp_path / "base/config.json").unlink()
    with pytest.raises(InputError, match="depends on the order of the model's layers"):
        merged_here(tmp_path)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("LORA", {"init_lora_weights": "pissa_niter_4"}, {}, "LORA: PEFT makes other weights of it each time"),
    ("LORA", {}, {"alora_invocation_tokens": [1]}, "alora_invocation_tokens .*cannot be merged"),
    ("LORA", {}, {"arrow_config": {"top_k": 2}}, "arrow_config .*cannot be merged"),
    ("LORA", {}, {"layer_replication": [[0, 2]]}, "layer_replication .*cannot be merged"),
    ("LORA", {}, {"megatron_config": {"a": 1}, "megatron_core": "os"}, "megatron_config makes PEFT import code"),
    ("LORA", {}, {"use_magic": True}, "use_magic, which PEFT .* does not know; upgrade it"),
    ("LORA", {"use_dora": True}, {"use_dora": False}, "lora_magnitude_vector is not part of a low-rank update"),
    ("LORA", {"r": 4}, {"use_dora": True}, "it has no .*lora_magnitude_vector"),
    ("LORA", {}, {"trainable_token_indices": [1]}, "names tokens, and none of them is in it"),
    ("LORA", {"trainable_token_indices": [1, 2]}, {"trainable_token_indices": [1]}, "for 1 tokens"),
    ("LORA", {"trainable_token_indices": [1, 2]}, {"trainable_token_indices": [1, -2]}, "does not name the tokens"),
    ("LORA", {"trainable_token_indices": [1, 2]}, {"trainable_token_indices": [1, 99]}, "the rows of trained tokens"),
    ("LORA", {}, {"target_parameters": ["down_proj.weight"]}, "both name model.layers.0.mlp.down_proj"),
    ("LOHA", {}, {"peft_type": "MAGIC"}, "an adapter of type MAGIC, which PEFT .* does not know; upgrade it"),
    ("LOHA", {}, {"target_modules": 4}, "target_modules is 4, not names of modules; save the adapter again"),
    ("LOHA", {}, {"exclude_modules": ["fc", 4]}, "exclude_modules is .*, not names of modules"),
    ("LOHA", {}, {"layers_to_transform": [0], "layers_pattern": [1]}, "layers_pattern is .*, not names of modules"),
    ("LOHA", {}, {"r": "many"}, "PEFT cannot put it on this base"),
    ("LOHA", {}, {"r": 7}, "PEFT cannot put it on this base: .*size mismatch"),
    ("LOHA", {}, {"r": 10**9}, "PEFT cannot put it on this base: a tensor of 16000000000 values"),
    ("LOHA", {}, {"rank_pattern": {"((a+)+)+b": 3}}, "rank_pattern: too intricate a pattern"),
    ("IA3", SETTINGS["IA3"], {"feedforward_modules": "(a+)+b"}, "feedforward_modules: too intricate a pattern"),
    ("LOHA", {}, {"use_sorcery": 1}, "use_sorcery, which PEFT"),
    ("LOHA", {}, {"target_modules": ["q_proj", "down_proj"]}, r"PEFT leaves out model\.layers\.0\.self_attn\.v_proj"),
    ("LOHA", {}, {"target_modules": r".*q_proj"}, r"PEFT leaves out model\.layers\.0\.mlp\.down_proj"),
    ("LOHA", {}, {"exclude_modules": ["v_proj"]}, r"PEFT leaves out model\.layers\.0\.self_attn\.v_proj"),
    ("LOHA", {}, {"layers_to_transform": [0]}, r"PEFT leaves out model\.layers\.1\."),
    ("LOHA", {}, {"layers_to_transform": "1"}, "not the configuration of a LOHA"),
    ("LOHA", {}, {"modules_to_save": 7}, "not the configuration of a LOHA"),
]


@pytest.mark.parametrize(("kind", "settings", "changes", "said"), REFUSED, ids=str)
def test_what_peft_would_not_load_or_load_otherwise_is_refused_by_name(
    kind: str, settings: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write_adapter(tmp_path, "llama", kind, **settings)
    configured(tmp_path, **changes)
    with pytest.raises(InputError, match=said) as caught:
        merged_here(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_tensor_that_peft_would_leave_out_is_refused_and_one_that_is_missing(tmp_path: Path) -> None:
    write_adapter(tmp_path, "llama", "LOHA")
    file = tmp_path / "adapter/adapter_model.safetensors"
    tensors = load_file(file)
    first = next(iter(tensors))
    save_file(tensors | {f"{first}_more": torch.zeros(2)}, file)
    with pytest.raises(InputError, match=f"PEFT leaves out .*{first.rpartition('.')[2]}_more"):
        merged_here(tmp_path)
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, file)
    with pytest.raises(InputError, match=r"it has no .*; save the adapter again"):
        merged_here(tmp_path)


@pytest.mark.parametrize("targets", [["q_proj"], []])
def test_experts_that_the_base_stores_one_by_one_are_read_once_it_is_saved_otherwise(
    targets: list[str], tmp_path: Path
) -> None:
    write_adapter(tmp_path, "mixtral", "LORA", r=2, target_modules=targets, target_parameters=EXPERTS)
    with pytest.raises(InputError, match=r"mlp\.experts\.(gate_up|down)_proj.*save_original_format=False"):
        merged_here(tmp_path)
    model_of("mixtral").save_pretrained(tmp_path / "base", save_original_format=False)
    wanted, (found, changed) = merged_by_peft(tmp_path, "mixtral", save_original_format=False), merged_here(tmp_path)
    assert len(changed) == 2 * (6 + len(targets))
    assert all((found[name] - value).abs().max() <= 1e-6 * value.abs().max() for name, value in wanted.items())


@pytest.mark.parametrize(("kind", "settings"), [("LORA", {"use_dora": True}), ("LOKR", {}), ("LN_TUNING", {})])
def test_no_more_than_one_layer_of_the_base_is_held(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """After every layer was read, the model that PEFT's tuner is on has the adapter's values and none of the base's."""
    write_adapter(tmp_path, "twelve layers, tied", kind, **SETTINGS.get(kind, {}) | settings)
    base = open_for_merging(tmp_path / "base")
    deltas = open_models(base, {"a": open_model(tmp_path / "adapter")}, ParameterRules())
    for name in deltas.names:
        deltas.layer(name)
    adapter = deltas.models["a"]
    assert isinstance(adapter, Adapter)
    assert adapter.peft is not None
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in adapter.peft.put_on.holder.state_dict().values()
        if tensor.device.type == "cpu"
    }
    trained = sum(tensor.nbytes for tensor in load_file(tmp_path / "adapter/adapter_model.safetensors").values())
    assert sum(held.values()) <= trained + 64


def test_plain_low_rank_updates_need_no_peft_and_others_name_the_extra(tmp_path: Path) -> None:
    for name, settings in {"plain": {}, "dora": {"use_dora": True}}.items():
        write_adapter(tmp_path / name, "llama", "LORA", r=2, **settings)
    code = """
import sys
from pathlib import Path
from merganser.checkpoints.adapters.files import open_model
print(len(open_model(Path("plain/adapter")).updates))
try:
    open_model(Path("dora/adapter"))
except ModuleNotFoundError as error:
    print(error)
"""
    ended = run_light(tmp_path, code)
    assert ended.stdout.splitlines() == [
        "6",
        "this needs peft, which is not installed: pip install 'merganser[adapters]'",
    ]
