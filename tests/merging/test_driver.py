import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerSource
from merganser.inputs.pieces import PIECE
from merganser.merging.about import REGISTERED
from merganser.merging.driver import choose_device
from merganser.merging.method import method
from merganser.overlays import Parts, task_model
from tests.gpu import every_gpu
from tests.laws.layers import with_few_steps
from tests.merges import merge_checkpoints
from tests.small_models import SHAPES, write_models

# the models here have no text tower to embed class names with, and no data
ABOUT: Any = {"family": "sparse", "formula": "x", "paper": "none", "law": "none", "involvement": "NDI"}
METHODS = [name for name in registry.names() if len(registry.get(name).needs) == 1]  # it alone
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    return write_models(tmp_path / "models")


def tasks_of(models: dict[str, Path], method: str) -> dict[str, Path]:
    """Give as many of the fine-tuned models as a method merges."""
    tasks = [(name, path) for name, path in models.items() if name != "base"]
    return dict(tasks[: registry.get(method).most_tasks])


def merge(models: dict[str, Path], out: Path, method: str, **values: object) -> dict[str, torch.Tensor]:
    tasks = tasks_of(models, method)
    merge_checkpoints(method, values, models["base"], tasks, out, device="cpu")
    return load_file(out / "model.safetensors")


def test_the_merged_checkpoint_is_base_plus_merged_delta(models: dict[str, Path], tmp_path: Path) -> None:
    merged = merge(models, tmp_path / "out", "average")
    states = {name: load_file(path / "model.safetensors") for name, path in models.items()}
    for name in SHAPES:
        expected = torch.stack([states[f"task{t}"][name].double() for t in range(3)]).mean(0)
        torch.testing.assert_close(merged[name].double(), expected, rtol=1e-6, atol=1e-6)


def test_the_seed_draws_the_masks(models: dict[str, Path], tmp_path: Path) -> None:
    first, again, other = (
        merge(models, tmp_path / name, "dare", **values)
        for name, values in {"a": {}, "b": {"seed": 0}, "c": {"seed": 1}}.items()
    )
    assert all(torch.equal(first[name], again[name]) for name in SHAPES)
    assert any(not torch.equal(first[name], other[name]) for name in SHAPES)
    for nonsense in (-1, 0.5, True, "0"):
        with pytest.raises(InputError, match="seed: must be a whole number from 0 on"):
            merge(models, tmp_path / "out", "dare", seed=nonsense)


def test_frozen_parameters_are_the_bases_own(models: dict[str, Path], tmp_path: Path) -> None:
    merged = merge(models, tmp_path / "out", "average")
    assert merged["steps"].item() == 3


def test_a_tasks_own_model_comes_back_from_its_overlay(models: dict[str, Path], tmp_path: Path) -> None:
    merge(models, tmp_path / "out", "individual")
    own = dict(task_model(tmp_path / "out", "task1"))
    tuned = open_checkpoint(models["task1"])
    for name in SHAPES:
        torch.testing.assert_close(own[name], tuned.read(name), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="no parts for the task 'task9'"):
        dict(task_model(tmp_path / "out", "task9"))


FEW_INPUTS = {"smile": {"k_gate": 4}}  # its gates read fewer than the maps of these models have
OTHER_DTYPES = [("task_arithmetic", torch.float32), ("tsv_m", torch.float16), ("individual", torch.float16)]


# The driver converts to a checkpoint's dtype and back, whatever the method.
@pytest.mark.parametrize(("method", "dtype"), [*((name, torch.bfloat16) for name in METHODS), *OTHER_DTYPES])
def test_every_method_keeps_names_shapes_and_dtypes(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", dtype=dtype)
    merged = merge(models, tmp_path / "out", method, **FEW_INPUTS.get(method, {}))
    base = load_file(models["base"] / "model.safetensors")
    assert {n: (t.shape, t.dtype) for n, t in merged.items()} == {n: (t.shape, t.dtype) for n, t in base.items()}
    assert all(torch.isfinite(tensor.float()).all() for tensor in merged.values())


@every_method
def test_merging_again_with_any_number_of_threads_gives_the_same_bytes(
    method: str, models: dict[str, Path], tmp_path: Path
) -> None:
    tasks = tasks_of(models, method)
    values = with_few_steps(registry.get(method), FEW_INPUTS.get(method, {}))
    for threads in (1, 2, 5):
        out = tmp_path / str(threads)
        merge_checkpoints(method, values, models["base"], tasks, out, device="cpu", threads=threads)
    one, two, five = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("1", "2", "5"))
    assert one == two == five


def test_more_models_than_a_method_merges_are_refused_before_any_work(models: dict[str, Path], tmp_path: Path) -> None:
    tasks = {name: path for name, path in models.items() if name != "base"}
    with pytest.raises(InputError, match="--model: slerp merges at most 2 models, got 3"):
        merge_checkpoints("slerp", {}, models["base"], tasks, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_the_base_is_one_of_two_to_slerp(models: dict[str, Path], tmp_path: Path) -> None:
    tasks = {"base": models["base"], "tuned": models["task0"]}
    values = {"coefficients": {"base": 1.0, "tuned": 3.0}}
    notes = merge_checkpoints("slerp", values, models["base"], tasks, tmp_path / "out", device="cpu")
    assert not [note for note in notes if "adds nothing" in note]
    merge_checkpoints("slerp", values, models["task1"], tasks, tmp_path / "elsewhere", device="cpu")
    here, there = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "elsewhere"))
    for name in SHAPES:
        torch.testing.assert_close(there[name], here[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda delta: delta.mT if delta.ndim == 2 else delta, r"returned torch.Size\(.*a tensor of \("),
        (lambda delta: delta[None], r"returned torch.Size\(\[1, "),
        (lambda delta: None, "returned NoneType"),
        (lambda delta: delta.numpy(), "returned ndarray"),
        (
            lambda delta: delta.to_sparse(),
            r"torch\.sparse_coo, and should return a dense one of floating-point numbers",
        ),
        (lambda delta: delta + 1j, r"a tensor of torch\.complex64 "),  # the imaginary part was dropped in silence
        (lambda delta: delta > 0, r"a tensor of torch\.bool "),
        (lambda delta: Parts(), "returned Parts"),  # which its signature does not say
        (lambda delta: sys.exit(0), "its code ends the program"),
        (lambda delta: delta / 0 * 0, r"the merge has values that are no numbers \(NaN\)"),
    ],
)
def test_what_is_no_delta_of_the_layer_is_refused(
    spoil: Callable[[Tensor], Tensor],
    said: str,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoilt(layer: LayerDeltas) -> Tensor:
        """Average, and spoil it."""
        return spoil(layer.deltas.mean(0))

    monkeypatch.setitem(REGISTERED, "spoilt", None)  # what is registered in its place goes with the test
    method(**ABOUT)(spoilt)
    with pytest.raises(InputError, match=rf"^[\w.]+: .*{said}"):
        merge(models, tmp_path / "out", "spoilt")
    assert not (tmp_path / "out").exists()


def by_layer(halve: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def own(layer: LayerDeltas) -> Tensor:
        """Weigh the base against the models."""
        assert layer.base is not None
        return halve(layer.deltas).sum(0) - halve(layer.base)

    return method(on_models=True, by_rows=True, **ABOUT)(own)


def by_factors(halve: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def own(layer: LayerFactors) -> Tensor:
        """Sum the tasks' largest directions."""
        return torch.stack([(halve(one.u)[:, :1] * one.s[0]) @ halve(one.vh)[:1] for one in layer.factors]).sum(0)

    return method(**ABOUT)(own)


def by_all_layers(halve: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def own(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
        """Weigh by the first pass."""
        total = sum(layers.map(lambda layer: float(halve(layer.deltas).norm())))
        return lambda layer: halve(layer.deltas).sum(0) / total

    return method(**ABOUT)(own)


def by_parameter(halve: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def own(parameter: LayerSource) -> Callable[[LayerDeltas], Tensor]:
        """Weigh by the first pass over a parameter."""
        total = sum(parameter.map(lambda layer: float(halve(layer.deltas).norm())))
        return lambda layer: halve(layer.deltas).sum(0) / total

    return method(**ABOUT)(own)


@pytest.mark.parametrize("form", [by_layer, by_factors, by_all_layers, by_parameter])
def test_a_method_of_ones_own_may_change_its_layers_in_place(
    form: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED, "own", None)  # what is registered in its place goes with the test
    models = {name: tmp_path / name for name in ("base", "task0", "task1")}
    for seed, path in enumerate(models.values()):
        generator = torch.Generator().manual_seed(seed)
        path.mkdir()
        shapes = {"a": (30, 4), "b": (PIECE, 2)}  # the second is read in pieces
        state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        save_tensors(path / "model.safetensors", state)
    merges = []
    for halve in (lambda tensor: tensor * 0.5, lambda tensor: tensor.mul_(0.5)):
        form(halve)
        merges.append(merge(models, tmp_path / f"out{len(merges)}", "own"))
    assert all(torch.equal(merges[0][name], merges[1][name]) for name in ("a", "b"))


def test_the_folder_holds_nothing_but_the_outcome(models: dict[str, Path], tmp_path: Path) -> None:
    merge(models, tmp_path / "place/out", "average")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["out"]
    assert {path.name for path in (tmp_path / "place/out").iterdir()} == {
        "README.md",
        "merge.yaml",
        "model.safetensors",
    }


def test_a_gpu_asked_for_and_absent_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(InputError, match="no usable GPU"):
        choose_device("cuda")


# All methods are in test_devices.py; these go from checkpoints to a folder, of one model and of parts.
@every_gpu
@pytest.mark.parametrize("method", ["task_arithmetic", "tsv_m", "individual"])
def test_a_gpu_merges_checkpoints_as_the_cpu_does(
    method: str, gpu: Callable[[], AbstractContextManager[None]], models: dict[str, Path], tmp_path: Path
) -> None:
    tasks = {name: path for name, path in models.items() if name != "base"}
    merge_checkpoints(method, {}, models["base"], tasks, tmp_path / "cpu", device="cpu")
    with gpu():
        merge_checkpoints(method, {}, models["base"], tasks, tmp_path / "gpu", device="cuda")
    cpu, found = (sorted(path.name for path in (tmp_path / each).iterdir()) for each in ("cpu", "gpu"))
    assert cpu == found
    for task in tasks if registry.get(method).overlay else [""]:
        cpu, found = (
            dict(task_model(tmp_path / each, task)) if task else load_file(tmp_path / each / "model.safetensors")
            for each in ("cpu", "gpu")
        )
        for name in cpu:
            torch.testing.assert_close(found[name], cpu[name], rtol=1e-5, atol=1e-5)
