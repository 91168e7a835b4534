"""The factor cache: one file of U, S, Vh per matrix parameter of a task, and one file with its vectors.

Each file holds a fingerprint of the delta, the settings and the code (without comments) that it was computed from. It
is renamed into place when complete, and reused if the fingerprint matches: a killed decomposition loses only the layers
that it was computing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor
from torch.nn.functional import pad

from merganser.checkpoints.kinds import Kind, delta_shape
from merganser.checkpoints.tensors import SafetensorsFile, to_bytes
from merganser.checkpoints.writing import save_tensors
from merganser.code_digest import code_digest
from merganser.errors import InputError
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors, LayerLowRank, LayerSource, LayerTable
from merganser.linalg import svd
from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise_all
from merganser.outputs import remove_others
from merganser.workers import map_in_order, one_blas_thread

CODE = ("merganser.linalg.svd", "merganser.linalg.lapack")  # the modules that compute the factors
ALWAYS_KEPT = 64  # singular vectors: small matrices keep all of them, so that a method can rebuild the matrix
VECTORS = "vectors.safetensors"
DECOMPOSE_WORK = 4  # peak memory of a decomposition, in float32 copies of the matrix
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class FactorSettings:
    """How much of each spectrum's vectors is kept, and in which dtype."""

    rank_fraction: float
    dtype: str = "float32"

    def rank(self, shape: tuple[int, ...]) -> int:
        """Count the singular vectors kept of an M x N matrix."""
        full = min(shape)
        return max(count_of(self.rank_fraction, full), min(full, ALWAYS_KEPT))


def decompose(deltas: DeltaFile, settings: FactorSettings, folder: Path, threads: int = 1) -> tuple[int, int]:
    """Fill a task's factor folder; return how many matrices were decomposed, and how many were up to date.

    `threads`: matrices decomposed in parallel; the bytes written do not depend on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    touched = [name for name in deltas.kinds if deltas.is_touched(name)]
    matrices = [name for name in touched if deltas.kinds[name] == "matrix"]
    remove_others(folder, {parameter_file_name(name) for name in matrices} | {VECTORS})

    def decompose_one(name: str) -> bool:
        return _decompose_one(deltas, name, settings, folder / parameter_file_name(name))

    def bytes_in_work(name: str) -> int:
        return DECOMPOSE_WORK * 4 * prod(deltas.shape(name))

    with one_blas_thread(), torch.inference_mode():
        done = sum(map_in_order(decompose_one, matrices, threads, bytes_in_work))
    vectors = {name: deltas.delta(name) for name in touched if deltas.kinds[name] == "vector"}
    index = {**deltas.index, "shapes": {name: deltas.shape(name) for name in deltas.kinds}, "touched": touched}
    fingerprint = fingerprint_from(json.dumps(index), *vectors.values())
    if fingerprint_of(folder / VECTORS) != fingerprint:
        save_tensors(folder / VECTORS, vectors, json.dumps({**index, "fingerprint": fingerprint}))
    return done, len(matrices) - done


def factorised(layer: Layer, settings: FactorSettings) -> Layer:
    """Decompose a matrix of all tasks, adapters from their factors at full rank; return other layers unchanged."""
    if isinstance(layer, LayerFactors) or layer.kind == "vector":
        return layer
    if isinstance(layer, LayerLowRank):
        full = min(layer.shape)
        factorised_sides = (svd.factorise_low_rank(*sides) for sides in zip(layer.left, layer.right, strict=True))
        factors = tuple(Factors(u, pad(s, (0, full - len(s))), vh) for u, s, vh in factorised_sides)
    else:
        factors = factorise_all(layer.deltas, settings.rank(layer.shape))
    return LayerFactors(layer.name, layer.tasks, factors, layer.seed, norms=layer.norms)


def parameter_file_name(parameter: str) -> str:
    """Return the name of a parameter's file, quoted so that it stays inside the folder."""
    return f"{quote(parameter, safe='')}.safetensors"


def _decompose_one(deltas: DeltaFile, name: str, settings: FactorSettings, path: Path) -> bool:
    """Decompose one matrix, an adapter's from its factors at full rank; return False if its file was up to date."""
    shape = delta_shape(deltas.shape(name), "matrix")
    factored = deltas.is_factored(name)
    given = deltas.factors(name) if factored else (deltas.matrix(name),)
    rank = None if factored else settings.rank(shape)
    fingerprint = fingerprint_from(f"{code_digest(*CODE)} {rank} {settings.dtype} {shape}", *given)
    if fingerprint_of(path) == fingerprint:
        return False
    u, s, vh = svd.factorise_low_rank(*given) if factored else svd.factorise(given[0], rank)
    dtype = DTYPES[settings.dtype]
    spectrum = pad(s.to(torch.float32), (0, min(shape) - len(s)))
    tensors = {"u": u.to(dtype), "s": spectrum, "vh": vh.to(dtype)}
    save_tensors(path, tensors, json.dumps({"fingerprint": fingerprint}))
    return True


def fingerprint_from(settings: str, *tensors: Tensor) -> str:
    """Return a digest of what a file is computed from: settings, and the values of tensors."""
    digest = hashlib.sha256(settings.encode())
    for tensor in tensors:
        digest.update(to_bytes(tensor))
    return digest.hexdigest()


def fingerprint_of(path: Path) -> str | None:
    """Read a file's fingerprint; None if the file is missing or damaged."""
    try:
        return json.loads(SafetensorsFile(path).metadata["merganser"])["fingerprint"]
    except (OSError, InputError, KeyError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class FactorFolder:
    """One task's factors."""

    path: Path

    @cached_property
    def vectors(self) -> DeltaFile:
        """Open the file of vectors, which also holds each parameter's kind."""
        return DeltaFile(self.path / VECTORS)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each parameter that the task changes."""
        return {name: self.vectors.kinds[name] for name in self.vectors.index["touched"]}

    def factors(self, name: str) -> tuple[Factors, torch.dtype | None]:
        """Read a matrix parameter's factors in float32, and the dtype of the stored vectors (None for a zero delta)."""
        if name not in self.vectors.index["touched"]:
            rows, columns = delta_shape(self.vectors.shape(name), "matrix")
            return Factors(torch.zeros(rows, 0), torch.zeros(min(rows, columns)), torch.zeros(0, columns)), None
        file = SafetensorsFile(self.path / parameter_file_name(name))
        read = [file.read(field) for field in ("u", "s", "vh")]
        return Factors(*(tensor.to(torch.float32) for tensor in read)), read[0].dtype


@dataclass(frozen=True)
class FactorSource(LayerSource):
    """The factors of T tasks as layers; vectors are read as deltas."""

    folders: Mapping[str, FactorFolder]
    seed: int = 0

    @cached_property
    def table(self) -> LayerTable:
        folders = self.folders.values()
        kinds = dict(sorted((name, kind) for folder in folders for name, kind in folder.kinds.items()))
        first = next(iter(folders)).vectors
        return LayerTable(
            tuple(self.folders), kinds, {n: delta_shape(first.shape(n), kind) for n, kind in kinds.items()}
        )

    def layer(self, name: str) -> Layer:
        folders = self.folders.values()
        norms = tuple(folder.vectors.index["norms"][name] for folder in folders)
        if self.kinds[name] == "vector":
            deltas = torch.stack([folder.vectors.delta(name) for folder in folders])
            return LayerDeltas(name, "vector", self.tasks, deltas, self.seed, norms=norms)
        factors, stored = zip(*(folder.factors(name) for folder in folders), strict=True)
        dtype = next(each for each in stored if each)
        return LayerFactors(name, self.tasks, factors, self.seed, norms=norms, stored=dtype)


def open_factors(folder: Path, tasks: list[str], seed: int = 0) -> FactorSource:
    """Open `<folder>/<task>/` of each task, sorted by name."""
    return FactorSource({task: FactorFolder(folder / task) for task in sorted(tasks)}, seed)
