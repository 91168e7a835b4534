"""What `params.yaml` says, typed."""

from dataclasses import dataclass

from common.stages import Finetuning


@dataclass(frozen=True)
class Measured:
    """Texts of each task that models are measured on."""

    validation: int
    test: int


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`."""

    seed: int
    tasks: list[str]
    data: Measured
    finetune: Finetuning
