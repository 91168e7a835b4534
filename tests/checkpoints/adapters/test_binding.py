"""An adapter's layers are found in the base; what cannot be represented is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from tests.checkpoints.adapters.small import extracted, rewritten, write_adapter, write_base

BASE_KEY = "base_model.model.fc.lora_{}.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_base(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    write_adapter(tmp_path / "a", base)
    return tmp_path / "a"


def inside(base: Path, out: Path, **prefixes: str) -> Path:
    """Write a base that holds the small model under each prefix, all but the first with other values."""
    given, out = open_checkpoint(base), out / "model.safetensors"
    out.parent.mkdir()
    parts = enumerate(prefixes.values())
    save_file({f"{prefix}{name}": i + given.read(name) for i, prefix in parts for name in given.names}, out)
    return out.parent


def complaint(base: Path, adapter: Path, rules: ParameterRules | None = None) -> str:
    with pytest.raises(InputError) as caught:
        extracted(base, adapter, adapter.with_name("refused"), rules)
    assert not adapter.with_name("refused").exists()
    return str(caught.value)


def test_an_adapter_of_a_part_is_found_under_the_parts_name(base: Path, adapter: Path, tmp_path: Path) -> None:
    whole = inside(base, tmp_path / "whole", only="model.visual.")
    alone, found = (extracted(b, adapter, tmp_path / f"{b.name}-out") for b in (base, whole))
    assert {f"model.visual.{name}" for name in alone.names} == set(found.names)
    assert torch.equal(found.delta("model.visual.fc.weight"), alone.delta("fc.weight"))


def test_an_adapter_that_fits_two_parts_goes_to_the_one_that_is_merged(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    both = inside(base, tmp_path / "both", text="", image="visual.")
    said = complaint(both, adapter)
    assert said.startswith("one: the adapter fits 'the whole' and 'visual' of the base; let parameters.merged")
    assert "; let --only name one of them" in complaint(both, adapter, ParameterRules(flags=True))
    found = extracted(both, adapter, tmp_path / "out", ParameterRules(merged=["visual.*"]))
    assert all(name.startswith("visual.") for name in found.names)
    text = ["conv1.*", "attn.*", "fc.*", "proj.*"]
    assert "fc.weight.left" in extracted(both, adapter, tmp_path / "out", ParameterRules(merged=text))


def test_what_is_not_merged_is_left_out(base: Path, adapter: Path, tmp_path: Path) -> None:
    found = extracted(base, adapter, tmp_path / "out", ParameterRules(merged=["fc.*", "ln.*"]))
    assert set(found.names) == {"fc.weight.left", "fc.weight.right"}
    assert "no merged parameter" in complaint(base, adapter, ParameterRules(["ln.*"]))


def test_a_head_of_the_adapters_own_can_be_excluded(base: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", base, modules_to_save=["head"])
    rewritten(tmp_path / "a", lambda name: name.replace(".head.", ".classifier."))
    said = complaint(base, tmp_path / "a")
    assert said.startswith("one: the adapter's classifier.bias is not in the base")
    assert "leave it out of parameters.merged" in said
    assert "merge without it: --except 'classifier" in complaint(base, tmp_path / "a", ParameterRules(flags=True))
    found = extracted(base, tmp_path / "a", tmp_path / "out", ParameterRules(merged=["fc.*", "head.*"]))
    assert set(found.names) == {"fc.weight.left", "fc.weight.right"}


def renamed(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda name: name.replace(old, new))


def configured(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def replaced(key: str, value: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        given = open_checkpoint(folder / "adapter_model.safetensors")
        tensors = {name: given.read(name) for name in given.names if name != key}
        save_file(tensors | ({} if value is None else {key: value}), folder / "adapter_model.safetensors")

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed(".fc.", ".mlp."), ["PEFT leaves out mlp by target_modules of its adapter_config.json"]),
        (
            lambda folder: (configured(target_modules="all-linear")(folder), renamed(".fc.", ".mlp.")(folder)),
            ["one: the adapter's mlp.weight is not in the base", "give the base"],
        ),
        (renamed("base_model.model.", "base_model.model.other."), ["one: another architecture", "other."]),
        (renamed("fc.lora_A.weight", "fc.lora_diag"), ["fc.lora_diag is not part of a low-rank update", "merge_and"]),
        (replaced(BASE_KEY.format("B"), None), ["fc has no lora_B", "save the adapter again"]),
        (replaced(BASE_KEY.format("A"), torch.zeros(3, 16)), ["fc: A of shape [3, 16] and B of shape [32, 2]"]),
        (replaced(BASE_KEY.format("A"), torch.zeros(0)), ["fc: A of shape [0] and B of shape [32, 2]"]),
        (replaced(BASE_KEY.format("A"), torch.zeros(2, 9)), ["fc.weight is for shape [32, 9]", "has [32, 16]"]),
        (replaced(BASE_KEY.format("A"), torch.full((2, 16), torch.nan)), ["one: fc.weight holds NaN"]),
        (replaced("base_model.model.fc.lora_A.other.weight", torch.zeros(2, 16)), ["fc has two updates"]),
        (configured(r=4), ["make no update of rank 4", "merge_and_unload"]),
        (configured(peft_type="IA3"), ["adapter_config.json: bias, which PEFT", "does not know", "merge_and_unload"]),
        (configured(use_dora=True), ["attn is an nn.MultiheadAttention; only plain", "merge_and_unload"]),
        (configured(target_parameters=["fc.weight"]), ["target_modules and target_parameters both name fc"]),
        (configured(trainable_token_indices=[1]), ["trainable_token_indices names tokens, and none"]),
        (configured(r=0), ["not the configuration of a PEFT adapter (r: Input should be greater than 0"]),
        (configured(rank_pattern={"(": 2}), ["not the configuration of a PEFT adapter (rank_pattern"]),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), ["'peft_type' is missing"]),
        (lambda folder: (folder / "adapter_config.json").write_text("["), ["not the configuration of a PEFT adapter"]),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), ["an adapter, not a whole model"]),
        (lambda folder: save_file({}, folder / "adapter_model.safetensors"), ["an adapter without tensors"]),
    ],
)
def test_an_adapter_that_cannot_be_read_is_refused_by_name(
    base: Path, adapter: Path, change: Callable[[Path], object], said: list[str]
) -> None:
    change(adapter)
    message = complaint(base, adapter)
    assert len(message.splitlines()) == 1
    assert all(part in message for part in said), message


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd")
def test_a_convolution_in_groups_is_refused(tmp_path: Path) -> None:
    model = nn.ModuleDict({"conv": nn.Conv2d(4, 8, 2, groups=2)})
    (tmp_path / "base").mkdir()
    save_file(model.state_dict(), tmp_path / "base/model.safetensors")
    get_peft_model(model, LoraConfig(r=2, target_modules=["conv"])).save_pretrained(tmp_path / "a")
    assert "conv: A of shape" in complaint(tmp_path / "base", tmp_path / "a")


def test_an_adapter_is_no_base(adapter: Path) -> None:
    with pytest.raises(InputError, match="an adapter, not a whole model"):
        open_checkpoint(adapter)
    assert open_model(adapter).path == adapter
    with pytest.raises(InputError, match="an adapter's tensors alone; give its folder"):
        open_model(adapter / "adapter_model.safetensors")
