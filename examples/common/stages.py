"""What every stage of a suite begins with: its settings, the task it is for, its threads."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """Examples per split of each task."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Finetuning:
    """Steps, examples a step and peak learning rate of every task."""

    steps: int
    batch_size: int
    learning_rate: float


def read_settings(path: Path, kind: type[T]) -> T:
    """Read a `params.yaml` as a dataclass; an unknown or missing key is a TypeError that names it."""
    return _typed(kind, yaml.safe_load(path.read_text(encoding="utf-8")))


def _typed(kind: type[T], values: Mapping[str, Any]) -> T:
    hints = get_type_hints(kind)
    sections = {name for name in values if is_dataclass(hints.get(name))}
    return kind(**{name: _typed(hints[name], value) if name in sections else value for name, value in values.items()})


def named(task: str) -> str:
    """Return a task's name: for @, what DVC calls this instance of its stage after the @."""
    return os.environ["DVC_STAGE"].partition("@")[2] if task == "@" else task


def use_threads(count: int) -> None:
    """Train with so many threads, whatever the machine has: the order of sums and so the bytes depend on them."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch

    torch.set_num_threads(count)
    torch.use_deterministic_algorithms(True)
