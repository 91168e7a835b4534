"""Dual encoders of pictures and texts: class heads from prompts, and the pictures' preparation.

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
    """The base class of dual encoders: a class head from prompts, and features that may be changed before it.

    `image_side`: the prefixes of parameters outside the text tower.
    """

    image_side: ClassVar[str]
    _text: bytes  # the digest of the loaded text tower
    _head: Tensor | None = None
    _change: Change | None = None

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters of a model; raise InputError naming a missing, unknown or misshapen one."""
        super().load(parameters)
        config = self.naming.where / self.naming.config
        self._text, self._head = text_digest(self.module, config, self.image_side), None

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Return the class logits (B, C) with these parameters instead of the loaded ones; differentiable.

        The class heads stay those of the loaded text tower.
        """
        return self._scored(self.with_parameters(parameters, lambda: self._features(inputs)))

    def head(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Build the class head (C, D) from each class's prompts, times the scale."""
        self._head = class_head(prompts, self._text, self.embed, self.module.logit_scale)
        return self._head

    @contextmanager
    def changing(self, change: Change) -> Iterator[None]:
        """In the block, give the head the result of `change` on the features (B, D)."""
        self._change = change
        try:
            yield
        finally:
            self._change = None

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""

    def _run(self, inputs: Inputs) -> Tensor:
        return self._scored(self._features(inputs))

    def _scored(self, features: Tensor) -> Tensor:
        """Return the class logits (B, C) of features (B, D), before they are changed."""
        assert self._head is not None, "logits need a class head: call `head` after each `load`"
        head = self._head if torch.is_inference_mode_enabled() else self._head.clone()
        return (features if self._change is None else self._change(features)) @ head.T


def class_head(
    prompts: Sequence[Sequence[str]], tower: bytes, embed: Callable[[Sequence[str]], Tensor], scale: Tensor
) -> Tensor:
    """Build a class head (C, D) from each class's prompts, once per process for a text tower and prompts.

    The text tower is frozen in most comparisons, and encoding its prompts can take longer than the images.
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
    """Hash a text tower: its configuration, tokenizer and parameters, with their device and dtype.

    `image_side`: the prefixes of other parameters.
    """
    digest = sha256()
    for file in sorted({config, *(file for pattern in TOKENIZER for file in config.parent.glob(pattern))}):
        digest.update(sha256(file.read_bytes()).digest())
    for name, value in module.state_dict().items():
        if not name.startswith(image_side):
            digest.update(f"{name} {value.device} {value.dtype}".encode())
            digest.update(to_bytes(value))
    return digest.digest()
