"""Checkpoints to measure merges on: ViT-B/32 in size, a random base, fine-tunes that differ by low rank and noise."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor

from merganser.checkpoints.kinds import ParameterRules, parameter_kind
from merganser.checkpoints.tensors import Spec
from merganser.checkpoints.writing import write_checkpoint

ARCHITECTURE = "ViT-B-32"
TOWER = "visual."  # what is fine-tuned
TASKS, BLOCKS = 8, 12
RANK = 16  # of the large part of a task matrix
NOISE, SIZE, STEP = 0.02, 0.02, 1e-3  # noise against the low-rank part; entries of the base; of a delta


def make_models(folder: Path, tasks: int = TASKS, blocks: int = BLOCKS) -> tuple[Path, dict[str, Path]]:
    """Write a base (both towers, with its configuration) and fine-tuned image towers; keep what is there already.

    `blocks`: of the image tower, another number than ViT-B/32's to see what grows with the number of layers.
    """
    return write_models(folder / f"{blocks}-blocks", _settings(blocks), tasks)


def write_models(folder: Path, settings: dict[str, Any], tasks: int) -> tuple[Path, dict[str, Path]]:
    """Write models of the architecture that open_clip's settings describe; keep what is there already."""
    base = folder / "base"
    specs = _specs(settings)
    if not (base / "model.safetensors").is_file():
        base.mkdir(parents=True, exist_ok=True)
        config = {"model_cfg": settings, "preprocess_cfg": {}}
        (base / "open_clip_config.json").write_text(json.dumps(config))
        write_checkpoint(base / "model.safetensors", specs, ((name, _weights(name, specs[name])) for name in specs))
    tower = {name: spec for name, spec in specs.items() if name.startswith(TOWER)}
    models = {f"task{number}": folder / f"task{number}" for number in range(tasks)}
    for task, path in models.items():
        if not (path / "model.safetensors").is_file():
            path.mkdir(parents=True, exist_ok=True)
            write_checkpoint(path / "model.safetensors", tower, _tuned(task, tower))
    return base, models


def _settings(blocks: int) -> dict[str, Any]:
    settings: dict[str, Any] = open_clip.get_model_config(ARCHITECTURE)
    settings["vision_cfg"]["layers"] = blocks
    return settings


def _specs(settings: dict[str, Any]) -> dict[str, Spec]:
    with torch.device("meta"):
        model = open_clip.CLIP(**settings)
    return {name: Spec("F32", tuple(value.shape)) for name, value in model.state_dict().items()}


def _generator(*words: str) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(sha256(" ".join(words).encode()).digest()[:7], "little"))


def _weights(name: str, spec: Spec) -> Tensor:
    return SIZE * torch.randn(spec.shape, generator=_generator("base", name))


def _tuned(task: str, specs: dict[str, Spec]) -> Iterator[tuple[str, Tensor]]:
    for name, spec in specs.items():
        yield name, _weights(name, spec) + _delta(task, name, spec)


def _delta(task: str, name: str, spec: Spec) -> Tensor:
    generator = _generator(task, name)
    if parameter_kind(name, spec.shape, ParameterRules()) == "vector":
        return STEP * torch.randn(spec.shape, generator=generator)
    rows, columns = spec.shape[0], torch.Size(spec.shape[1:]).numel()
    left, right = (torch.randn(shape, generator=generator) for shape in ((rows, RANK), (RANK, columns)))
    noise = torch.randn(rows, columns, generator=generator)
    return (STEP * (left @ right / RANK**0.5 + NOISE * noise)).reshape(spec.shape)
