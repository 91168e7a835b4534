"""What dual encoders of pictures and texts share: class heads made of prompts, and the pictures they take.

Shape legend: B images, C classes, D features, N texts.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import normalize

from merganser.checkpoints.own_settings import TOKENIZER
from merganser.checkpoints.tensors import to_bytes
from merganser.models import Change, Inputs
from merganser.models.linear_maps import WithBlocks
from merganser.models.named_module import NamedModule

TEXT_BATCH = 256
HEADS_KEPT = 64

_heads: dict[str, Tensor] = {}  # by what they were computed from


class DualEncoder(NamedModule, WithBlocks, ABC):
    """A base of dual encoders: a class head of prompts, and features that are changed on the way to it.

    `image_side` begins the names of the parameters that are not the text tower's.
    """

    image_side: ClassVar[str]
    _text: bytes  # the digest of the loaded text tower
    _head: Tensor | None = None
    _change: Change | None = None

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take all parameters of a model; raise InputError naming one that is missing, strange or misshapen."""
        super().load(parameters)
        config = self.naming.where / self.naming.config
        self._text, self._head = text_digest(self.module, config, self.image_side), None

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Score every class with these parameters in place of the loaded ones of their names; differentiable (B, C).

        The class heads stay those of the loaded text side.
        """
        return self._scored(self.with_parameters(parameters, lambda: self._features(inputs)))

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Score every class: (B, C)."""
        return self._scored(self._features(inputs))

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return the unit embeddings of images (B, D)."""
        return self._features(inputs)

    def head(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Make the class head (C, D) of each class's prompts, times the scale."""
        self._head = class_head(prompts, self._text, self.embed, self.module.logit_scale)
        return self._head

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        """While the block runs, give the head what `change` makes of the features (B, D)."""
        self._change = change
        try:
            yield
        finally:
            self._change = None

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""

    @abstractmethod
    def _features(self, inputs: Inputs) -> Tensor:
        """Return the unit embeddings of images (B, D)."""

    def _scored(self, features: Tensor) -> Tensor:
        """Score every class, given features (B, D) before they are changed: (B, C)."""
        assert self._head is not None, "logits need a class head: call `head` after each `load`"
        head = self._head if torch.is_inference_mode_enabled() else self._head.clone()
        return (features if self._change is None else self._change(features)) @ head.T


def class_head(
    prompts: Sequence[Sequence[str]], tower: bytes, embed: Callable[[Sequence[str]], Tensor], scale: Tensor
) -> Tensor:
    """Make a class head (C, D) of each class's prompts, once a process for one text tower and one set of prompts.

    The text tower is frozen in most comparisons, and its prompts can take longer to encode than the images.
    """
    key = sha256(json.dumps(prompts).encode() + tower).hexdigest()
    if key not in _heads:
        if len(_heads) == HEADS_KEPT:
            del _heads[next(iter(_heads))]
        _heads[key] = _directions(prompts, embed) * scale.detach().exp()
    return _heads[key]


@torch.inference_mode()
def _directions(prompts: Sequence[Sequence[str]], embed: Callable[[Sequence[str]], Tensor]) -> Tensor:
    """Return each class's unit vector, the mean direction of its prompts' embeddings (C, D)."""
    embeddings = embed([text for of_class in prompts for text in of_class])
    means = [group.mean(dim=0) for group in embeddings.split([len(of_class) for of_class in prompts])]
    return normalize(torch.stack(means), dim=-1)


def text_digest(module: Module, config: Path, image_side: str) -> bytes:
    """Hash a text tower: its configuration, the tokenizer beside it, its parameters, their device and dtype.

    `image_side` begins the names of other parameters.
    """
    digest = sha256()
    for file in sorted({config, *(file for pattern in TOKENIZER for file in config.parent.glob(pattern))}):
        digest.update(sha256(file.read_bytes()).digest())
    for name, value in module.state_dict().items():
        if not name.startswith(image_side):
            digest.update(f"{name} {value.device} {value.dtype}".encode())
            digest.update(to_bytes(value))
    return digest.digest()
