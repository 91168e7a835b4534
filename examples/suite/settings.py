"""What `params.yaml` says, typed."""

from dataclasses import dataclass

from common.stages import Finetuning, Sizes


@dataclass(frozen=True)
class Pretraining:
    """Steps of the two phases, and how many images per subject are drawn in the clean style and in the tasks' own."""

    text_steps: int
    image_steps: int
    batch_size: int
    clean_images: int
    styled_images: int


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`; digits has no more than 250 and 547 images for validation and test."""

    seed: int
    tasks: list[str]
    data: Sizes
    pretrain: Pretraining
    finetune: Finetuning
