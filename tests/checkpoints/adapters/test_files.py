"""What an adapter does to each parameter is what PEFT makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from merganser.checkpoints.adapters.settings import Settings
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.inputs.deltas import DeltaFile
from tests.checkpoints.adapters.small import LAYERS, adapted, extracted, rewritten, write_adapter, write_base

MATRICES = {"conv1.weight", "attn.in_proj_weight", "attn.out_proj.weight", "fc.weight", "proj.weight"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_base(tmp_path / "base")
    return tmp_path / "base"


def assert_gives(deltas: DeltaFile, base: Path, tuned: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Compare deltas and norms with those of a fine-tuned model, parameter by parameter."""
    given = open_checkpoint(base)
    assert set(deltas.kinds) == set(tuned)
    for name, value in tuned.items():
        wanted = value.double() - given.read(name).double()
        assert (deltas.delta(name).double() - wanted).norm() <= tolerance * wanted.norm(), name
        assert deltas.index["norms"][name] == pytest.approx(float(value.double().norm()), rel=max(tolerance, 1e-5)), (
            name
        )
        assert deltas.is_touched(name) == bool(wanted.any()), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True, "lora_alpha": 5},
        {"rank_pattern": {"fc": 3, "^attn": 4}, "alpha_pattern": {"conv1": 1, "at+n": 7}, "use_rslora": True},
        {"bias": "lora_only", "modules_to_save": ["head", "ln"]},
        {"bias": "all"},
        {"lora_bias": True, "target_modules": ["fc", "proj"], "bias": "lora_only"},
        {"target_modules": [*LAYERS, "emb"]},
        {"r": 16, "init_lora_weights": "gaussian"},
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_every_kind_of_update_adds_up_to_pefts_merged_model(
    base: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    tuned = write_adapter(tmp_path / "a", base, **settings)
    assert_gives(extracted(base, tmp_path / "a", tmp_path / "out"), base, tuned)


@pytest.mark.parametrize(
    ("changed", "is_read"),
    [
        ({"target_modules": ["conv1", "attn", "fc"]}, False),
        ({"target_modules": r"(conv1|attn|f.)"}, False),
        ({"exclude_modules": ["proj"]}, False),
        ({"target_modules": r"conv1|attn|(.*\.)?(fc|proj)"}, True),
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": None}, True),
    ],
)
def test_an_update_that_peft_leaves_out_is_refused(
    base: Path, tmp_path: Path, changed: dict[str, Any], is_read: bool
) -> None:
    tuned, path = write_adapter(tmp_path / "a", base), tmp_path / "a" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    if is_read:
        assert_gives(extracted(base, tmp_path / "a", tmp_path / "out"), base, tuned)
    else:
        with pytest.raises(InputError, match=r"PEFT leaves out proj by (target|exclude)_modules of its "):
            extracted(base, tmp_path / "a", tmp_path / "out")


QUERIES = [f"model.layers.{layer}.experts.{expert}.q" for layer in range(2) for expert in range(2)]


@pytest.mark.parametrize(
    "settings",
    [
        {"layers_to_transform": 1},
        {"layers_to_transform": []},
        {"layers_to_transform": [0], "layers_pattern": "experts"},
        {"layers_to_transform": [0, 7], "layers_pattern": ["h", "layers"]},
        {"layers_to_transform": [0], "layers_pattern": "blocks"},
        {"layers_to_transform": [0], "target_modules": ["q", QUERIES[3]]},
        {"modules_to_save": ["layers.1"]},
        {"modules_to_save": ["xperts", "experts.1.q"]},
    ],
    ids=str,
)
def test_peft_leaves_out_the_same_modules(settings: dict[str, Any]) -> None:
    given = {"target_modules": ["q"], **settings}
    found = Settings(r=1, lora_alpha=1, **given)
    left = [name for name in QUERIES if not check_target_module_exists(LoraConfig(**given), name)]
    assert [name for name in QUERIES if found.leaves_out(name)] == left


@pytest.mark.parametrize("value", [True, "on", 0.5, {"a": 1}])
def test_a_setting_that_peft_does_not_know_is_refused(base: Path, tmp_path: Path, value: Any) -> None:
    write_adapter(tmp_path / "a", base)
    path = tmp_path / "a" / "adapter_config.json"
    config = json.loads(path.read_text()) | {"lora_dtype": "AUTO", "lorap_emb_lr": 1e-6}  # of ms-swift's training
    path.write_text(json.dumps(config))
    extracted(base, tmp_path / "a", tmp_path / "out")
    path.write_text(json.dumps(config | {"new_setting": value}))
    with pytest.raises(InputError, match=r"new_setting, which PEFT .* does not know"):
        extracted(base, tmp_path / "a", tmp_path / "out")


def test_matrices_are_kept_as_factors_of_the_adapters_rank_and_nothing_else_is_stored(
    base: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a", base, rank_pattern={"fc": 3}, modules_to_save=["head"])
    deltas = extracted(base, tmp_path / "a", tmp_path / "out")
    assert {name for name in deltas.kinds if deltas.is_factored(name)} == MATRICES
    assert deltas.factors("fc.weight")[0].shape == (32, 3)
    assert deltas.factors("conv1.weight")[1].shape == (2, 12)
    stored = {f"{name}.{side}" for name in MATRICES for side in ("left", "right")}
    assert set(deltas.names) == stored | {"head.weight", "head.bias"}


def test_the_trained_network_itself_is_what_is_read(base: Path, tmp_path: Path) -> None:
    """PEFT's own forward pass, not only its merge, is that of base + delta."""
    tuned = adapted(base)
    tuned.save_pretrained(tmp_path / "a")
    deltas, given = extracted(base, tmp_path / "a", tmp_path / "out"), open_checkpoint(base)
    images = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    scores = tuned(images).detach()
    plain = tuned.unload()
    plain.load_state_dict({name: given.read(name) + deltas.delta(name) for name in given.names})
    torch.testing.assert_close(plain(images).detach(), scores, rtol=1e-4, atol=1e-5)


def test_an_update_of_out_proj_that_a_later_peft_learnt_counts_once(base: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", base)
    before = extracted(base, tmp_path / "a", tmp_path / "before")
    config = tmp_path / "a/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"peft_version": "0.22.0"}))
    after = extracted(base, tmp_path / "a", tmp_path / "after")
    for name in MATRICES:
        factor = 2 if name == "attn.out_proj.weight" else 1
        torch.testing.assert_close(before.delta(name), factor * after.delta(name))


def test_a_module_that_keeps_its_weights_transposed_is_read_as_such(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"square": Conv1D(6, 6), "wide": Conv1D(6, 4)})
    (tmp_path / "base").mkdir()
    save_file(model.state_dict(), tmp_path / "base/model.safetensors")
    tuned = get_peft_model(model, LoraConfig(r=2, target_modules=["square", "wide"], fan_in_fan_out=True))
    for parameter in tuned.parameters():
        parameter.data += torch.randn(parameter.shape) if parameter.requires_grad else 0
    tuned.save_pretrained(tmp_path / "a")
    merged = tuned.merge_and_unload().state_dict()
    assert_gives(extracted(tmp_path / "base", tmp_path / "a", tmp_path / "out"), tmp_path / "base", merged)


def test_what_is_no_matrix_by_the_rules_is_multiplied_out(base: Path, tmp_path: Path) -> None:
    tuned = write_adapter(tmp_path / "a", base)
    deltas = extracted(base, tmp_path / "a", tmp_path / "out", ParameterRules(matrices="any_2d"))
    assert not deltas.is_factored("conv1.weight")
    assert deltas.delta("conv1.weight").shape == (16, 3, 2, 2)
    assert_gives(deltas, base, tuned)


def test_half_precision_torch_weights_and_names_with_the_adapters_own_are_read(base: Path, tmp_path: Path) -> None:
    tuned = write_adapter(tmp_path / "a", base)
    rewritten(tmp_path / "a", lambda name: name.replace(".weight", ".default.weight"))
    assert_gives(extracted(base, tmp_path / "a", tmp_path / "out"), base, tuned)
    given = open_checkpoint(tmp_path / "a/adapter_model.safetensors")
    torch.save({name: given.read(name).half() for name in given.names}, tmp_path / "a/adapter_model.bin")
    (tmp_path / "a/adapter_model.safetensors").unlink()
    assert_gives(extracted(base, tmp_path / "a", tmp_path / "out"), base, tuned, tolerance=1e-3)


def test_a_half_precision_base_gets_deltas_in_float32(tmp_path: Path) -> None:
    write_base(tmp_path / "full")
    write_base(tmp_path / "half", torch.bfloat16)
    write_adapter(tmp_path / "a", tmp_path / "full")
    full, half = (extracted(tmp_path / kind, tmp_path / "a", tmp_path / f"{kind}-out") for kind in ("full", "half"))
    assert torch.equal(full.delta("fc.weight"), half.delta("fc.weight"))
