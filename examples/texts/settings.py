"""What `params.yaml` says, typed."""

from dataclasses import dataclass

from common.stages import Finetuning, Sizes


@dataclass(frozen=True)
class Pretraining:
    """Steps, texts of each task a step and in all, and the share of them in the plain construction."""

    steps: int
    batch_size: int
    texts: int
    plain: float


@dataclass(frozen=True)
class Adapting(Finetuning):
    """The same of every adapter, and its rank."""

    rank: int


@dataclass(frozen=True)
class Encoder:
    """How the encoder suite is trained."""

    pretrain: Pretraining
    finetune: Finetuning


@dataclass(frozen=True)
class Causal:
    """How the causal suite is trained."""

    pretrain: Pretraining
    adapt: Adapting


@dataclass(frozen=True)
class Settings:
    """The whole of `params.yaml`."""

    seed: int
    tasks: list[str]
    data: Sizes
    encoder: Encoder
    causal: Causal
