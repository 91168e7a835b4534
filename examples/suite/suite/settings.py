"""What `params.yaml` says, typed."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Sizes:
    """Images per split of each task; digits has no more than 250 for validation and 547 for test."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Pretraining:
    """Steps of the two phases, and how many images per subject are drawn in the clean style and in the tasks' own."""

    text_steps: int
    image_steps: int
    batch_size: int
    clean_images: int
    styled_images: int


@dataclass(frozen=True)
class Finetuning:
    """Steps, images a step and peak learning rate of every task."""

    steps: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`; an unknown or missing key is a TypeError that names it."""

    seed: int
    tasks: list[str]
    data: Sizes
    pretrain: Pretraining
    finetune: Finetuning


def read_settings(path: Path) -> Settings:
    """Read a `params.yaml`."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    sections = {"data": Sizes, "pretrain": Pretraining, "finetune": Finetuning}
    typed = {name: section(**values.pop(name)) for name, section in sections.items()}
    return Settings(**values, **typed)
