"""Stacks of linear maps, such as a layer's experts: each matrix is merged by itself, as it is applied."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules, is_stack, parameter_kind
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import Spec
from merganser.checkpoints.views import from_file, in_file
from merganser.errors import InputError
from merganser.inputs.deltas import extract, open_deltas
from merganser.inputs.factors import FactorSettings, decompose, open_factors
from merganser.inputs.task_models import own_model, own_parameter
from merganser.learning.loop import merged_weights
from merganser.merging import driver
from merganser.overlays import task_model
from tests.laws import test_drm_h, test_tsv_m
from tests.laws.references import Array, Given
from tests.merges import merge_checkpoints

EXPERTS, BACK = (f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj"))
ROUTER, CONV1, CONV3 = "model.router.weight", "model.conv1.weight", "model.proj.weight"
SHAPES = {EXPERTS: (3, 4, 10), BACK: (3, 5, 4), ROUTER: (3, 6), CONV1: (5, 4, 3), CONV3: (4, 3, 2, 2, 2)}
SHAPES |= {"model.cls_token": (1, 1, 6)}
OUT_BY_IN = SHAPES | {EXPERTS: (3, 10, 4), BACK: (3, 4, 5)}
REFERENCES = {"tsv_m": test_tsv_m.reference, "drm_h": test_drm_h.reference}


def write(folder: Path, shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, Path]:
    """Write a base and two tasks with experts in one tensor and convolutions of one and three dimensions."""
    generator, paths = torch.Generator().manual_seed(0), {}
    base = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for number, name in enumerate(("base", "a", "b")):
        own = {key: value + (number > 0) * torch.randn(value.shape, generator=generator) for key, value in base.items()}
        paths[name] = folder / name
        paths[name].mkdir(parents=True)
        save_file(own, paths[name] / "model.safetensors")
    return paths


def read(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model.safetensors")


def merge(method: str, paths: dict[str, Path], out: Path, rules: ParameterRules | None = None) -> dict[str, Tensor]:
    tasks = {name: path for name, path in paths.items() if name != "base"}
    merge_checkpoints(method, {}, paths["base"], tasks, out, device="cpu", **({"rules": rules} if rules else {}))
    return read(out)


def by_reference(method: str, deltas: Sequence[Array], **values: Any) -> Array:
    """Merge one matrix of two tasks by the method's formula in float64."""
    stacked = np.stack(deltas)
    norms = tuple(float(np.linalg.norm(delta)) for delta in deltas)
    chosen = registry.get(method).validate("", {}) | values
    wanted = {key: value for key, value in chosen.items() if key not in ("coefficients", "layers")}
    (merged,) = REFERENCES[method]([Given("one", "matrix", ("a", "b"), stacked, norms)], **wanted)
    return np.asarray(merged)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vision_encoder.pos_embed", "vector"),  # SAM's
        ("backbone.position_embeddings", "vector"),
        ("encoder.layer.grn.bias", "vector"),  # ConvNeXt V2's
        ("vision_encoder.patch_embed.projection.weight", "matrix"),
        ("embeddings.position_embeddings.conv.parametrizations.weight.original1", "matrix"),
        ("encoder.rel_attn.r", "matrix"),
    ],
)
def test_of_four_dimensions_kernels_are_matrices_and_embeddings_of_places_are_not(name: str, kind: str) -> None:
    assert parameter_kind(name, (1, 4, 4, 8), ParameterRules()) == kind


@pytest.mark.parametrize("shapes", [SHAPES, OUT_BY_IN], ids=["in x out", "out x in"])
@pytest.mark.parametrize("method", list(REFERENCES))
def test_each_matrix_of_a_stack_and_each_kernel_is_merged_by_itself(
    method: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    paths = write(tmp_path, shapes)
    found = merge(method, paths, tmp_path / "merged")
    base, *tasks = ({key: value.double().numpy() for key, value in read(path).items()} for path in paths.values())

    def turned(matrix: Array) -> Array:
        return matrix.T if shapes is SHAPES else matrix

    for name, number in ((name, number) for name in (EXPERTS, BACK) for number in range(3)):
        deltas = [turned(task[name][number] - base[name][number]) for task in tasks]
        expected = base[name][number] + turned(by_reference(method, deltas))
        np.testing.assert_allclose(found[name][number], expected, atol=1e-5)
    for name in (CONV1, CONV3, ROUTER):
        deltas = [(task[name] - base[name]).reshape(shapes[name][0], -1) for task in tasks]
        expected = base[name] + by_reference(method, deltas).reshape(shapes[name])
        np.testing.assert_allclose(found[name], expected, atol=1e-5)
    assert {name: tuple(value.shape) for name, value in found.items()} == shapes


@pytest.mark.parametrize("method", ["tsv_m", "dare"])
def test_the_stages_merge_stacks_as_the_command_does(method: str, tmp_path: Path) -> None:
    paths = write(tmp_path)
    expected = merge(method, paths, tmp_path / "expected")
    base, found = open_for_merging(paths["base"]), registry.get(method)
    for task in ("a", "b"):
        file = tmp_path / f"deltas/{task}.safetensors"
        file.parent.mkdir(exist_ok=True)
        extract(base, open_model(paths[task]), ParameterRules(), task, file)
        decompose(open_deltas(file.parent, [task]).files[task], FactorSettings(1.0), tmp_path / "svd" / task)
    opened = open_factors if found.factored else open_deltas
    source = opened(tmp_path / ("svd" if found.factored else "deltas"), ["a", "b"], 0)
    (tmp_path / "merged").mkdir()
    driver.merge_layers(found, found.validate("", {}), source, base, tmp_path / "merged", torch.device("cpu"))
    for name, value in expected.items():
        torch.testing.assert_close(read(tmp_path / "merged")[name], value, atol=1e-6, rtol=0)


def test_a_tasks_own_model_has_its_stacks_whole(tmp_path: Path) -> None:
    paths = write(tmp_path)
    base = open_for_merging(paths["base"])
    extract(base, open_model(paths["a"]), ParameterRules(), "a", tmp_path / "a.safetensors")
    deltas = open_deltas(tmp_path, ["a"]).files["a"]
    merge("individual", paths, tmp_path / "merged")
    for own in (dict(own_model(base, deltas)), dict(task_model(tmp_path / "merged", "a"))):
        assert own.keys() == SHAPES.keys()
        for name, value in read(paths["a"]).items():
            torch.testing.assert_close(own[name], value, atol=1e-6, rtol=0)
    torch.testing.assert_close(own_parameter(base, deltas, EXPERTS), read(paths["a"])[EXPERTS], atol=1e-6, rtol=0)


def test_what_is_laid_out_as_in_the_file_is_shown_as_matrices_and_back(tmp_path: Path) -> None:
    base = open_for_merging(write(tmp_path)["base"])
    stack = torch.randn(SHAPES[EXPERTS])
    shown = from_file(base, EXPERTS, stack)
    assert {name: tuple(value.shape) for name, value in shown.items()} == {f"{EXPERTS}[{n}]": (10, 4) for n in range(3)}
    assert torch.equal(dict(in_file(base, shown.items()))[EXPERTS], stack)
    some = dict(in_file(base, [(f"{EXPERTS}[1]", shown[f"{EXPERTS}[1]"])]))[EXPERTS]
    assert torch.equal(some[1], stack[1])
    assert torch.equal(some[[0, 2]], read(tmp_path / "base")[EXPERTS][[0, 2]])


def test_learned_weights_of_a_stack_are_one_parameter_of_the_network(tmp_path: Path) -> None:
    base = open_for_merging(write(tmp_path)["base"])
    deltas = ((name, torch.ones(base.spec(name).shape)) for name in base.names)
    found = dict(merged_weights(base, deltas))
    assert {name: tuple(value.shape) for name, value in found.items()} == SHAPES
    torch.testing.assert_close(found[EXPERTS], read(tmp_path / "base")[EXPERTS] + 1)


def test_matrices_says_that_stacks_and_kernels_are_vectors(tmp_path: Path) -> None:
    paths = write(tmp_path)
    found = merge("tsv_m", paths, tmp_path / "merged", ParameterRules(matrices="any_2d"))
    for name in (EXPERTS, CONV1, CONV3):
        mean = (read(paths["a"])[name] + read(paths["b"])[name]) / 2
        torch.testing.assert_close(found[name], mean, atol=1e-6, rtol=0)


def test_patterns_mean_the_whole_stack(tmp_path: Path) -> None:
    paths = write(tmp_path)
    found = merge("average", paths, tmp_path / "merged", ParameterRules(heads=[EXPERTS]))
    assert torch.equal(found[EXPERTS], read(paths["base"])[EXPERTS])


def test_another_number_of_experts_is_refused_by_the_stacks_name(tmp_path: Path) -> None:
    paths = write(tmp_path)
    state = read(paths["a"])
    save_file(state | {EXPERTS: state[EXPERTS][:2].clone()}, paths["a"] / "model.safetensors")
    expected = rf"a: {EXPERTS} has shape \[2, 4, 10\], in the base it has \[3, 4, 10\]; merge without it"
    with pytest.raises(InputError, match=expected):
        merge("average", paths, tmp_path / "merged", ParameterRules(flags=True))


def test_experts_that_an_adapter_holds_whole_are_merged(tmp_path: Path) -> None:
    paths = write(tmp_path)
    own = read(paths["a"])[EXPERTS]
    (tmp_path / "adapter").mkdir()
    save_file({f"base_model.model.{EXPERTS}": own}, tmp_path / "adapter/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    found = merge("average", {"base": paths["base"], "a": tmp_path / "adapter"}, tmp_path / "merged")
    torch.testing.assert_close(found[EXPERTS], own, atol=1e-6, rtol=0)


KINDS = {
    "model.layers.0.mlp.experts.gate_up_proj": ((4, 8, 6), "stack"),
    "model.layers.0.mlp.experts.fc1.weight": ((4, 8, 6), "stack"),  # Aria's
    "model.layers.0.mlp.input_linear.weight": ((4, 8, 6), "stack"),  # JetMoE's
    "rg_lru.input_gate_weight": ((4, 8, 8), "stack"),  # RecurrentGemma's
    "model.encoder.conv1.weight": ((16, 8, 3), "matrix"),
    "visual.patch_embed.proj.weight": ((16, 3, 2, 14, 14), "matrix"),
    "encoder.pos_conv_embed.conv.parametrizations.weight.original1": ((16, 4, 8), "matrix"),
    "encoder.pos_conv_embed.conv.parametrizations.weight.original0": ((1, 1, 8), "vector"),
    "transformer.layer.0.rel_attn.q": ((16, 4, 4), "matrix"),  # XLNet's
    "transformer.layer.0.rel_attn.seg_embed": ((2, 4, 4), "vector"),
    "embeddings.position_embeddings": ((1, 9, 16), "vector"),
    "model.layers.0.mamba.A_log": ((2, 16, 4), "vector"),
    "model.layers.0.mlp.experts.gate_up_proj_bias": ((4, 8), "vector"),
    "depth_decoder.codebooks_head.weight": ((3, 16, 9), "vector"),
}


@pytest.mark.parametrize("name", list(KINDS))
def test_three_dimensions_are_told_apart_by_names(name: str) -> None:
    shape, kind = KINDS[name]
    found = "stack" if is_stack(name, Spec("F32", shape)) else parameter_kind(name, shape, ParameterRules())
    assert found == kind


SMALL = {"hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 1, "num_local_experts": 3}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "moe_num_experts": 3}
SAVED = [tf.GptOssConfig, tf.Llama4TextConfig, tf.AriaTextConfig, tf.GraniteMoeConfig]


@pytest.mark.parametrize("config", SAVED)
def test_experts_that_transformers_saves_are_shown_as_they_are_applied(config: Any, tmp_path: Path) -> None:
    tf.AutoModelForCausalLM.from_config(config(**SMALL)).save_pretrained(tmp_path)
    opened = open_for_merging(tmp_path)
    shapes = {opened.spec(name).shape for name in opened.names if name.endswith("[0]")}
    assert shapes == {(24, 16), (16, 12)}  # out x in: gates and values from the hidden state, and back
