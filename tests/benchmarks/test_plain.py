"""The plain programs compute what Merganser does, so the comparison of their times is one of like with like."""

import inspect
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.errors import far
from benchmarks.harness import ROOT
from benchmarks.plain.__main__ import MERGES, METHODS, PARTS
from benchmarks.plain.factors import svd
from benchmarks.plain.states import load, save
from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.writing import save_tensors
from tests.merges import merge_checkpoints
from tests.support import python

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
BASE, ONLY = "base.safetensors", ("visual.*",)
TASKS = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(5)
    base = {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    save_tensors(folder / BASE, base)
    for task in TASKS:
        tuned = {
            name: weights + 0.01 * torch.randn(weights.shape, generator=generator) for name, weights in base.items()
        }
        save_tensors(folder / f"{task}.safetensors", {n: w for n, w in tuned.items() if n.startswith("visual.")})
    return folder


def ours(method: str, models: Path) -> Path:
    """Merge by Merganser, once; return the folder."""
    out = models / method
    if not out.is_dir():
        rules = ParameterRules(merged=ONLY)
        merge_checkpoints(method, {}, models / BASE, paths(models), out, rules=rules, device="cpu")
    return out


def paths(models: Path) -> dict[str, Path]:
    """Return the tasks' checkpoints."""
    return {task: models / f"{task}.safetensors" for task in TASKS}


SAMPLED = ("ties", "tsv_m")


@pytest.mark.parametrize(
    "method", [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.drill) for name in METHODS]
)
def test_a_plain_program_and_merganser_make_the_same_model(method: str, models: Path, tmp_path: Path) -> None:
    command = [*python(), "-m", "benchmarks.plain", method, "--base", str(models / BASE), "--only", *ONLY]
    command += [f"--model={task}={path}" for task, path in paths(models).items()]
    subprocess.run([*command, "--out", str(tmp_path / "plain")], check=True, cwd=ROOT)
    # In float32 an entry may fall on the other side of a threshold; how many do depends on the processor's BLAS.
    tolerance = 2e-2 if method in ("drm_h", "knots") else 3e-5
    assert far(ours(method, models), tmp_path / "plain", models / BASE) <= tolerance


@pytest.mark.parametrize("method", MERGES)
def test_a_plain_program_in_float64_is_merganser_s_to_the_last_digits(
    method: str, models: Path, tmp_path: Path
) -> None:
    base = {name: weights.double() for name, weights in load(models / BASE).items()}
    states = [{name: weights.double() for name, weights in load(path).items()} for path in paths(models).values()]
    merged = MERGES[method]([{name: state[name] - base[name] for name in state} for state in states])
    save(tmp_path / "plain.safetensors", {name: weights + merged.get(name, 0) for name, weights in base.items()})
    assert far(ours(method, models), tmp_path / "plain.safetensors", models / BASE) <= 5e-6


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_program_has_the_method_s_defaults(method: str) -> None:
    ours = registry.get(method).validate(method, {})
    for name, parameter in list(inspect.signature((MERGES | PARTS)[method]).parameters.items())[1:]:
        assert parameter.default == ours[name], name


def test_an_svd_that_converges_in_no_precision_is_said() -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        svd(torch.full((4, 3), torch.nan))


def test_the_svd_has_the_matrixs_precision() -> None:
    matrix = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    u, s, vh = svd(matrix)
    assert {u.dtype, s.dtype, vh.dtype} == {torch.float32}
    assert torch.allclose(u * s @ vh, matrix, atol=1e-6)
