"""The plain programs compute what Merganser does, so the comparison of their times is one of like with like."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.errors import far
from benchmarks.harness import ROOT
from benchmarks.plain.__main__ import MERGES, METHODS, PARTS
from merganser import registry
from merganser.checkpoints import save_tensors
from merganser.parameters import ParameterRules
from tasks.standalone import merge_checkpoints

SHAPES = {
    "visual.conv1.weight": (24, 3, 4, 4),
    "visual.positional_embedding": (5, 24),
    "visual.transformer.resblocks.0.attn.in_proj_weight": (72, 24),
    "visual.transformer.resblocks.0.attn.in_proj_bias": (72,),
    "visual.transformer.resblocks.0.ln_1.weight": (24,),
    "visual.transformer.resblocks.0.mlp.c_fc.weight": (96, 24),
    "visual.transformer.resblocks.0.mlp.c_proj.weight": (24, 96),
    "text_projection": (24, 16),
}
TASKS = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(5)
    base = {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    save_tensors(folder / "base.safetensors", base)
    for task in TASKS:
        tuned = {
            name: weights + 0.01 * torch.randn(weights.shape, generator=generator) for name, weights in base.items()
        }
        save_tensors(folder / f"{task}.safetensors", {n: w for n, w in tuned.items() if n.startswith("visual.")})
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_program_and_merganser_make_the_same_model(method: str, models: Path, tmp_path: Path) -> None:
    base, paths = models / "base.safetensors", {task: models / f"{task}.safetensors" for task in TASKS}
    only = ("visual.*",)
    command = [sys.executable, "-m", "benchmarks.plain", method, "--base", str(base), "--out", str(tmp_path / "plain")]
    command += [f"--model={task}={path}" for task, path in paths.items()]
    subprocess.run([*command, "--only", *only], check=True, cwd=ROOT)
    merge_checkpoints(method, {}, base, paths, tmp_path / "ours", rules=ParameterRules(merged=only), device="cpu")
    assert far(tmp_path / "ours", tmp_path / "plain", base) <= 3e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_program_has_the_method_s_defaults(method: str) -> None:
    ours = registry.get(method).validate(method, {})
    for name, parameter in list(inspect.signature((MERGES | PARTS)[method]).parameters.items())[1:]:
        assert parameter.default == ours[name], name
