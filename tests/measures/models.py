"""Models on disk, extracted and decomposed, and merges of them."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from merganser import registry
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.inputs.deltas import Deltas, extract, open_deltas
from merganser.inputs.factors import FactorSettings, FactorSource, decompose, open_factors
from merganser.merging.driver import merge_layers


class Prepared(NamedTuple):
    """A base, and what the tasks' models add to it, whole and as factors."""

    base: Checkpoint
    deltas: Deltas
    factors: FactorSource


def prepare(base: Path, models: dict[str, Path], out: Path, rules: ParameterRules | None = None) -> Prepared:
    """Extract and decompose the tasks' models."""
    (out / "svd").mkdir(parents=True)
    opened = open_checkpoint(base)
    for task, path in models.items():
        extract(opened, open_model(path), rules or ParameterRules(), task, out / f"{task}.safetensors")
    deltas = open_deltas(out, list(models))
    for task, file in deltas.files.items():
        decompose(file, FactorSettings(1.0), out / "svd" / task)
    return Prepared(opened, deltas, open_factors(out / "svd", list(models)))


def merged(prepared: Prepared, name: str, out: Path, **values: Any) -> Path:
    """Merge by a method of this name into a folder."""
    method = registry.get(name)
    out.mkdir()
    source = prepared.factors if method.reads == "svd" else prepared.deltas
    merge_layers(method, method.validate(name, values), source, prepared.base, out, torch.device("cpu"))
    return out
