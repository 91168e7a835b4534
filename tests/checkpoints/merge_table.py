"""Merge what transformers saved, load it back, compare it with float64 formulas: a row a model, dtype and layout."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from merganser import registry
from merganser.checkpoints.kinds import ParameterRules, applied_as_stored, is_measured, is_stack, parameter_kind
from merganser.checkpoints.tensors import spec_of
from merganser.checkpoints.views import matrix_name
from tests.laws.references import Array, Given
from tests.merges import merge_checkpoints
from tests.transformers_models import load, save_models, tiny

METHODS = (
    *("average", "task_arithmetic", "ties", "dare", "breadcrumbs"),
    *("tsv_m", "iso_c", "knots", "drm_h", "drm_v"),
)
LAYOUTS = {"whole": "50GB", "sharded": "8KB"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NUDGES, NUDGE = 8, 3e-7
COMPUTED = 1e-5  # of a merged delta's norm: what the methods' own tests allow


@dataclass(frozen=True)
class Row:
    """What was merged, and how far each method's model is from its formula, in roundings of the dtype."""

    model: str
    dtype: str
    layout: str
    files: int
    errors: Mapping[str, float]  # by method; 1 is the error of rounding each number to the nearest at its worst


def rows(
    folder: Path, models: Sequence[str], methods: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> Iterator[Row]:
    """Merge each model in each dtype and layout by each method; raise AssertionError where one is not as it should."""
    for model in models:
        for dtype in dtypes:
            expected: dict[str, list[Array]] = {}
            for layout in layouts:
                yield merged_row(folder / f"{model}-{dtype}-{layout}", model, dtype, layout, methods, expected)


def merged_row(
    folder: Path,
    model: str,
    dtype: str,
    layout: str,
    methods: Sequence[str],
    expected: dict[str, list[Array]] | None = None,
) -> Row:
    """Merge three fine-tuned models of a kind by each method, and hold every parameter to the formula.

    `expected`: the merged deltas that the formulas give, by method, kept for the model's other layouts.
    """
    expected = {} if expected is None else expected
    paths = save_models(folder, model, dtype=DTYPES[dtype], shard=LAYOUTS[layout])
    base = paths.pop("base")
    built, start = tiny(model), matrices_in(base)
    swapped = {f"{name}.weight" for name, module in built.named_modules() if isinstance(module, Conv1D)}
    given = given_of(base, paths, swapped)
    files = sum(path.suffix == ".safetensors" for path in base.iterdir())
    assert (files > 1) == (layout == "sharded" and sum(values.nbytes for values in stored(base).values()) > 8000)
    errors = {}
    for method in methods:
        out = folder / method
        merge_checkpoints(method, {}, base, paths, out, device="cpu")
        assert weights_in(out) == weights_in(base)
        assert {format_of(path) for path in out.glob("*.safetensors")} == {"pt"}  # else older releases refuse it
        loaded = load(built, out)
        # some classes load a part in float32 whatever is stored
        assert loaded.dtype == DTYPES[dtype] or loaded.dtype == load(built, base).dtype
        if method not in expected:
            expected[method] = deltas_of(method, given)
        errors[method] = error_of(method, given, expected[method], swapped, start, matrices_in(out))
    return Row(model, dtype, layout, files, errors)


def stored(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder by the format's own library."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def matrices_in(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, the matrices of stacks each by itself and as out x in."""
    whole = stored(folder)
    specs = {name: spec_of(tensor) for name, tensor in whole.items()}
    turned, found = applied_as_stored(specs), dict[str, Tensor]()
    for name, tensor in whole.items():
        if is_stack(name, specs[name]):
            each = tensor.mT if name in turned else tensor
            found |= {matrix_name(name, number): matrix for number, matrix in enumerate(each)}
        else:
            found[name] = tensor
    return found


def format_of(path: Path) -> str | None:
    """Return the format that a file of weights says it has."""
    with safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("format")


def weights_in(folder: Path) -> dict[str, set[str]]:
    """Return which tensors are in which file."""
    return {path.name: set(load_file(path)) for path in sorted(folder.glob("*.safetensors"))}


def given_of(base: Path, paths: Mapping[str, Path], swapped: set[str]) -> list[Given]:
    """Subtract in float64; `swapped`: linear maps that are stored as in x out, by the types of their modules."""
    start, models = matrices_in(base), [matrices_in(path) for path in paths.values()]
    layers = []
    for name in sorted(name for name, values in start.items() if _is_merged(name, values)):
        first, *weights = (each[name].double().numpy() for each in (start, *models))
        if name in swapped:
            first, *weights = (each.T for each in (first, *weights))
        kind = parameter_kind(name, first.shape, ParameterRules())
        shape = (first.shape[0], -1) if kind == "matrix" else first.shape
        deltas = np.stack([(each - first).reshape(shape) for each in weights])
        norms = tuple(float(np.sqrt((each**2).sum())) for each in weights)
        layers.append(Given(name, kind, tuple(paths), deltas, norms, 0))
    return layers


def _is_merged(name: str, values: Tensor) -> bool:
    """Tell whether methods are given a tensor; what batch normalisation measured is averaged, here of equal ones."""
    return values.is_floating_point() and bool(values.numel()) and not is_measured(name)


def deltas_of(method: str, layers: Sequence[Given]) -> list[Array]:
    """Merge by a method's formula, in float64."""
    values: dict[str, Any] = registry.get(method).validate(method, {})
    values.pop("coefficients", None)
    found = importlib.import_module(f"tests.laws.test_{method}").reference(layers, **values)
    return list(map(np.asarray, found))


def error_of(
    method: str,
    layers: Sequence[Given],
    expected: Sequence[Array],
    swapped: set[str],
    base: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
) -> float:
    """Return the largest error of a parameter in roundings; raise AssertionError where one is more than rounding."""
    assert merged.keys() == base.keys()
    others = base.keys() - {layer.name for layer in layers}
    assert all(torch.equal(base[name], merged[name]) for name in others)
    worst = 0.0
    nudged: list[list[Array]] = []
    for place, (layer, delta) in enumerate(zip(layers, expected, strict=True)):
        start, found, turned = base[layer.name], merged[layer.name], layer.name in swapped
        assert found.dtype == start.dtype
        wanted = start.double().numpy() + (delta.T if turned else delta).reshape(start.shape)
        rounding = float(torch.finfo(start.dtype).eps / 2 * np.linalg.norm(wanted))
        error = float(np.linalg.norm(found.double().numpy() - wanted))
        if error > (allowed := rounding + COMPUTED * float(np.linalg.norm(delta))):
            nudged = nudged or [deltas_of(method, _nudged(layers, seed)) for seed in range(NUDGES)]
            moved = max(float(np.linalg.norm(each[place] - delta)) for each in nudged)
            assert error <= allowed + moved, f"{method}: {layer.name}"
        elif rounding:
            worst = max(worst, error / rounding)
    return worst


def _nudged(layers: Sequence[Given], seed: int) -> list[Given]:
    """Change deltas by what float32 rounds: an entry as large as a threshold is kept, or left out; a formula that
    divides by small singular values moves further. What is merged is as near as the formula stays to itself.
    """
    random = np.random.default_rng(seed)
    return [
        layer._replace(deltas=layer.deltas * (1 + NUDGE * random.standard_normal(layer.deltas.shape)))
        for layer in layers
    ]


def table(found: Sequence[Row]) -> str:
    """Show rows as a table in Markdown, those with the same numbers in one."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for row in found:
        key = (row.model, row.dtype, *(f"{error:.2g}" for error in row.errors.values()))
        alike.setdefault(key, []).append(row.files)
    lines = [["model", "dtype", "files", *found[0].errors], ["---"] * (3 + len(found[0].errors))]
    lines += [[model, dtype, ", ".join(map(str, files)), *errors] for (model, dtype, *errors), files in alike.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
