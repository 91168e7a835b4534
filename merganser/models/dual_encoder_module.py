"""Dual encoders of transformers: the text tower gives the class heads, the vision tower the features.

A task's checkpoint is often the vision tower alone, with or without `vision_model.` before its names; the text tower
and both projections are then the base's. Shape legend: B images, C classes, D features.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers  # each of its names imports what it needs: two seconds, that a command which runs no model saves
from torch import Tensor

from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.dual_encoder import TEXT_BATCH, DualEncoder
from merganser.models.naming import naming_of
from merganser.models.pictures import PictureModule
from merganser.models.texts import open_tokenizer

PREFIX = "vision_model"
TEXT_SIDE = ("text_model.*", "*_projection.*", "logit_*")  # what a vision model's checkpoint does without
IMAGE_SIDE = "vis"  # vision_model.*, visual_projection.weight


class DualEncoderModule(PictureModule, DualEncoder):
    """A dual encoder with the tokenizer and the image processor of its folder."""

    image_side = IMAGE_SIDE
    reads = f"{IMAGE_SIDE}*"
    mlps = (("mlp.fc1", "mlp.fc2"),)
    padding: ClassVar[bool | Literal["max_length"]] = True  # of texts: to the longest, or to the model's length

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer and the image processor of its folder."""
        super().__init__(module, naming_of(module, folder, prefix=PREFIX))
        self.folder, self._config = folder, module.config.text_config

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""
        embedded = [self._embedded(list(texts[i : i + TEXT_BATCH])) for i in range(0, len(texts), TEXT_BATCH)]
        return torch.cat(embedded)

    def _embedded(self, texts: list[str]) -> Tensor:
        length = self._config.max_position_embeddings
        tokens = self._tokenizer(texts, padding=self.padding, truncation=True, max_length=length, return_tensors="pt")
        return _unit(self.module.get_text_features(**tokens.to(self.device)).pooler_output)

    def _features(self, inputs: Inputs) -> Tensor:
        return _unit(self.module.get_image_features(pixel_values=self._normalised(inputs)).pooler_output)

    @cached_property
    def _tokenizer(self) -> Any:
        return open_tokenizer(self.folder, self._config)


def build_whole(family: str, folder: Path, device: DeviceName, precision: Precision) -> Any:
    """Build the dual encoder in a folder's configuration, without weights; refuse a single tower."""
    config = read_family_config(family, folder)
    if not _is_whole(config):
        raise InputError(f"{folder / CONFIG}: the vision side alone; as a base take the whole model")
    return build(transformers.AutoModel.from_config, config, folder, device, precision)


def check_side_or_whole(family: str, folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is neither a family's model nor its vision tower, by configuration and headers."""
    config, make = read_family_config(family, folder), transformers.AutoModel.from_config
    may_lack = TEXT_SIDE if _is_whole(config) else ()
    check_parameter_names(make, config, folder, checkpoint, may_lack=may_lack, prefix=PREFIX)


def _is_whole(config: Any) -> bool:
    return hasattr(config, "text_config")


def _unit(embeddings: Tensor) -> Tensor:
    return embeddings / embeddings.norm(p=2, dim=-1, keepdim=True)
