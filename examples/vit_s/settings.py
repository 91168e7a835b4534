"""What `params.yaml` says, typed."""

from dataclasses import dataclass

from common.stages import Finetuning, Sizes


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`."""

    seed: int
    tasks: list[str]
    pixels: int  # of a side, to which pictures are resized
    data: Sizes
    finetune: Finetuning
