"""What `params.yaml` says, typed."""

from dataclasses import dataclass

from common.stages import Sizes


@dataclass(frozen=True)
class Adapting:
    """A LoRA adapter's rank; steps, prompts a step and peak learning rate of every task."""

    rank: int
    steps: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`."""

    seed: int
    tasks: list[str]
    data: Sizes
    adapt: Adapting
