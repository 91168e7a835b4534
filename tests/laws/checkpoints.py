"""Checkpoints on disk with every kind of parameter or of spectrum, and what the library makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merganser.checkpoints.kinds import Kind, ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.inputs.deltas import extract, open_deltas
from merganser.inputs.factors import FactorSettings, decompose, open_factors
from merganser.inputs.layers import GivenLayers, Layer, LayerDeltas, LayerSource, MappedLayers, WrappedSource
from merganser.merging.driver import with_base
from merganser.merging.method import Method
from tests.laws.layers import embeddings_of, statistics_of, with_start
from tests.laws.references import Given

SEED = 3
PARAMETERS: dict[str, tuple[Kind, tuple[int, ...]]] = {
    "blocks.0.ln_1.weight": ("vector", (16,)),
    "blocks.0.mlp.bias": ("vector", (10,)),
    "blocks.0.square.weight": ("matrix", (16, 16)),
    "blocks.0.tall.weight": ("matrix", (20, 6)),
    "blocks.0.wide.weight": ("matrix", (6, 20)),
    "blocks.1.one_row.weight": ("matrix", (1, 9)),
    "conv1.weight": ("matrix", (8, 3, 2, 2)),
    "logit_scale": ("vector", ()),
    "token_embedding.weight": ("vector", (7, 5)),
}
MATRICES: dict[str, tuple[Kind, tuple[int, ...]]] = {  # large enough for some vectors to be found one by one
    "column.weight": ("matrix", (9, 1)),
    "one_row.weight": ("matrix", (1, 9)),
    "square.weight": ("matrix", (32, 32)),
    "tall.weight": ("matrix", (60, 24)),
    "wide.weight": ("matrix", (24, 60)),
}
SPECTRA = ("rank_deficient", "condition_1e6", "condition_1e12", "repeated", "all_equal", "one_zero")


_GIVEN: dict[tuple[Path, tuple[str, ...]], list[Given]] = {}


@dataclass(frozen=True)
class Models:
    """A base and T fine-tuned models in checkpoint files, their deltas and factors beside them."""

    folder: Path
    tasks: tuple[str, ...]
    parameters: Mapping[str, tuple[Kind, tuple[int, ...]]] = field(default_factory=lambda: PARAMETERS)

    def source(self, method: Method, values: Mapping[str, Any] | None = None) -> LayerSource:
        """Open what a method reads with these values, by default its own; statistics are made up from the deltas."""
        filled = values or method.validate(method.name, {})
        if method.reads == "statistics":
            return _opened("statistics", self.folder, self.tasks)
        read = _opened("svd" if method.factored else "deltas", self.folder, self.tasks)
        source = GivenLayers(read, {"embeddings": embeddings_of(self.tasks)})
        base = _base(self.folder / "base.safetensors")
        return with_start(method, with_base(source, base) if method.takes_base(filled) else source)

    def given(self) -> list[Given]:
        """Subtract the base from the models in float64, in the order of the parameters' names; read the files once."""
        key = (self.folder, self.tasks)
        if key not in _GIVEN:
            _GIVEN[key] = self._given()
        return list(_GIVEN[key])

    def _given(self) -> list[Given]:
        base = open_checkpoint(self.folder / "base.safetensors")
        models = [open_checkpoint(self.folder / f"{task}.safetensors") for task in self.tasks]
        extracted = open_deltas(self.folder / "deltas", list(self.tasks))
        layers = []
        for name, (kind, shape) in self.parameters.items():
            weights = np.stack([model.read(name).double().numpy() for model in models])
            norms = tuple(float(np.sqrt((each**2).sum())) for each in weights)
            shown = (shape[0], -1) if kind == "matrix" else shape
            start = base.read(name).double().numpy()
            deltas = (weights - start).reshape(len(models), *shown)
            statistics = with_statistics(extracted.layer(name)).statistics  # as the library is given them, in float32
            own = start.reshape(deltas.shape[1:])
            for array in (deltas, own):  # which all references share
                array.setflags(write=False)
            layers.append(Given(name, kind, self.tasks, deltas, norms, SEED, statistics, own))
        return layers


_base = cache(open_checkpoint)


@dataclass(frozen=True)
class Once(WrappedSource):
    """A source whose layers are read once for all merges; no method changes what it is given."""

    layers: dict[str, Layer] = field(default_factory=dict)

    def layer(self, name: str) -> Layer:
        if name not in self.layers:
            self.layers[name] = self.source.layer(name)
        return self.layers[name]


@cache
def _opened(read: str, folder: Path, tasks: tuple[str, ...]) -> Once:
    if read == "svd":
        return Once(open_factors(folder / read, list(tasks), SEED))
    deltas = open_deltas(folder / "deltas", list(tasks), SEED)
    return Once(MappedLayers(deltas, with_statistics) if read == "statistics" else deltas)


def with_statistics(layer: Layer) -> LayerDeltas:
    """Make up a layer's statistics."""
    assert isinstance(layer, LayerDeltas)
    return replace(layer, statistics=statistics_of(layer.deltas, layer.kind, layer.name))


def write_models(folder: Path, dtype: torch.dtype, tasks: int) -> Models:
    """Write the checkpoints in one dtype; let the library extract and decompose them."""
    models = Models(folder, tuple(f"task{t}" for t in range(tasks)))
    generator = torch.Generator().manual_seed(tasks)
    base = {name: 0.1 * torch.randn(shape, generator=generator) for name, (_, shape) in PARAMETERS.items()}
    save(folder / "base.safetensors", base, dtype)
    for size, task in zip(torch.linspace(0.5, 1.5, tasks).tolist(), models.tasks, strict=True):
        tuned = {name: weights + 0.02 * size * update(weights.shape, generator) for name, weights in base.items()}
        save(folder / f"{task}.safetensors", tuned, dtype)
        prepare(folder, task)
    return models


def write_alike(folder: Path) -> Models:
    """Write models as they can be: two the same, one fine-tuned with little rank and no vectors, one not at all."""
    models = Models(folder, ("first", "frozen", "low_rank", "same"))
    generator = torch.Generator().manual_seed(4)
    base = {name: 0.1 * torch.randn(shape, generator=generator) for name, (_, shape) in PARAMETERS.items()}
    save(folder / "base.safetensors", base, torch.float32)
    save(folder / "frozen.safetensors", base, torch.float32)
    low_rank = {name: weights + 0.02 * rank_two(weights.shape, generator) for name, weights in base.items()}
    save(folder / "low_rank.safetensors", low_rank, torch.float32)
    tuned = {name: weights + 0.02 * update(weights.shape, generator) for name, weights in base.items()}
    for task in ("first", "same"):
        save(folder / f"{task}.safetensors", tuned, torch.float32)
    for task in models.tasks:
        prepare(folder, task)
    return models


def write_spectrum(folder: Path, spectrum: str, tasks: int) -> Models:
    """Write models whose deltas have one kind of spectrum; from a base of 0, but for a zero delta, to be exactly so."""
    models = Models(folder, tuple(f"task{t}" for t in range(tasks)), MATRICES)
    generator = torch.Generator().manual_seed(tasks)
    shapes = {name: shape for name, (_, shape) in MATRICES.items()}
    size = 0.1 if spectrum == "one_zero" else 0.0
    base = {name: size * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save(folder / "base.safetensors", base, torch.float32)
    for number, task in enumerate(models.tasks):
        own = "condition_1e1" if spectrum == "one_zero" and number else spectrum
        tuned = {name: base[name] + with_spectrum(own, shape, generator) for name, shape in shapes.items()}
        save(folder / f"{task}.safetensors", tuned, torch.float32)
        prepare(folder, task)
    return models


def with_spectrum(spectrum: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw a matrix with a kind of spectrum."""
    rows, columns = shape
    full = min(shape)
    if spectrum == "one_zero":
        return torch.zeros(rows, columns)
    if spectrum == "rank_deficient":  # whole numbers: of exactly this rank
        left = torch.randint(-127, 128, (rows, 3), generator=generator)
        return (left @ torch.randint(-127, 128, (3, columns), generator=generator)).float() / 2**20
    if spectrum in ("repeated", "all_equal"):  # single entries: exactly these singular values
        values = torch.full((full,), 2.0**-6)
        values[: full // 3 if spectrum == "repeated" else 0] *= 2  # where one of three tasks is cut by default
        values *= torch.randint(0, 2, (full,), generator=generator) * 2 - 1
        matrix = torch.zeros(rows, columns)
        order = (torch.randperm(n, generator=generator)[:full] for n in shape)
        matrix[tuple(order)] = values
        return matrix
    condition = float(spectrum.removeprefix("condition_"))
    u, v = (torch.linalg.qr(torch.randn(n, full, generator=generator).double()).Q for n in shape)
    return (0.02 * (u * torch.logspace(0, -np.log10(condition), full, dtype=torch.float64)) @ v.mT).float()


def rank_two(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw an update of rank two, none for what is not a matrix."""
    if len(shape) < 2:
        return torch.zeros(shape)
    rows = shape[0]
    columns = torch.Size(shape).numel() // rows
    left, right = torch.randn(rows, 2, generator=generator), torch.randn(2, columns, generator=generator)
    return (left @ right).reshape(shape)


def update(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw an update with a falling spectrum, as fine-tuning leaves it."""
    drawn = torch.randn(shape, generator=generator)
    if len(shape) < 2:
        return drawn
    u, s, vh = torch.linalg.svd(drawn.flatten(1), full_matrices=False)
    return ((u * s * 0.8 ** torch.arange(len(s))) @ vh).reshape(shape)


def save(path: Path, state: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Write a state dict in one dtype."""
    save_tensors(path, {name: weights.to(dtype) for name, weights in state.items()})


def prepare(folder: Path, task: str) -> None:
    """Extract and decompose one task's model."""
    (folder / "deltas").mkdir(exist_ok=True)
    base, tuned = (open_checkpoint(folder / f"{name}.safetensors") for name in ("base", task))
    extract(base, tuned, ParameterRules(), task, folder / f"deltas/{task}.safetensors")
    deltas = open_deltas(folder / "deltas", [task]).files[task]
    decompose(deltas, FactorSettings(rank_fraction=1.0), folder / "svd" / task)
