"""Dual encoders of transformers: the text side makes the class heads, the vision side the features.

A task's checkpoint is often the vision side alone, with or without `vision_model.` before its names; the text side and
what follows both sides are then the base's. Shape legend: B images, C classes, D features.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import transformers  # each of its names imports what it needs: two seconds, that a command which runs no model saves
from torch import Tensor

from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError, quoting
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.dual_encoder import TEXT_BATCH, DualEncoder, picture
from merganser.models.naming import naming_of
from merganser.models.texts import open_tokenizer

PREFIX = "vision_model"
TEXT_SIDE = ("text_model.*", "*_projection.*", "logit_*")  # what a vision model's checkpoint does without
IMAGE_SIDE = "vis"  # vision_model.*, visual_projection.weight
MOST_A_SIDE = 2**13  # pixels of a picture once it is resized


class DualEncoderModule(DualEncoder):
    """A dual encoder with the tokenizer and the image processor of its folder."""

    image_side = IMAGE_SIDE
    reads = f"{IMAGE_SIDE}*"
    mlps = (("mlp.fc1", "mlp.fc2"),)
    padding: ClassVar[bool | Literal["max_length"]] = True  # of texts: to the longest, or to the model's length

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer and the image processor of its folder."""
        super().__init__(module, naming_of(module, folder, prefix=PREFIX))
        self.folder, self._config = folder, module.config.text_config

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3), as the folder's processor: (B, 3, H, W)."""
        pixels: Tensor = self._processor(
            [picture(image) for image in images], do_rescale=False, do_normalize=False, return_tensors="pt"
        ).pixel_values
        return pixels

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the unit embedding of each of N texts (N, D)."""
        found = [self._embedded(list(texts[i : i + TEXT_BATCH])) for i in range(0, len(texts), TEXT_BATCH)]
        return torch.cat(found)

    def _embedded(self, texts: list[str]) -> Tensor:
        length = self._config.max_position_embeddings
        tokens = self._tokenizer(texts, padding=self.padding, truncation=True, max_length=length, return_tensors="pt")
        return _unit(self.module.get_text_features(**tokens.to(self.device)).pooler_output)

    def _features(self, inputs: Inputs) -> Tensor:
        return _unit(self.module.get_image_features(pixel_values=self._normalised(inputs)).pooler_output)

    def _normalised(self, inputs: Inputs) -> Tensor:
        """Scale and normalise pixels by what the processor makes of each level: bit for bit its own."""
        pixels = inputs["pixels"].to(self.device)
        made = torch.empty(pixels.shape, dtype=self.module.dtype, device=self.device)
        for channel, levels in enumerate(self._levels):
            found = levels.index_select(0, pixels[:, channel].flatten().int())
            made[:, channel] = found.view_as(pixels[:, channel])
        return made

    @cached_property
    def _levels(self) -> Tensor:
        """Return what the processor makes of each level of each channel: (3, 256)."""
        ramp = np.arange(256, dtype=np.uint8).reshape(256, 1, 1).repeat(3, axis=2)
        found = self._processor([picture(ramp)], do_resize=False, do_center_crop=False, return_tensors="pt")
        return found.pixel_values[0, :, :, 0].contiguous().to(self.device)

    @cached_property
    def _tokenizer(self) -> Any:
        return open_tokenizer(self.folder, self._config)

    @cached_property
    def _processor(self) -> Any:
        """Open the folder's image processor: the one over PIL, which OpenAI's and open_clip's transforms agree with.

        The one over torchvision, the default of transformers 5, resizes to levels that are one higher or lower.
        """
        with quoting(f"{self.folder}: transformers cannot make the image processor"):
            made = transformers.AutoImageProcessor.from_pretrained(
                self.folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
            sides = [side for sizes in (made.size, made.crop_size) for side in dict(sizes or {}).values() if side]
            if any(side > MOST_A_SIDE for side in sides):
                raise ValueError(f"pictures of {max(sides)} pixels a side, and no model has more than {MOST_A_SIDE}")
            return made


def build_whole(family: str, folder: Path, device: DeviceName, precision: Precision) -> Any:
    """Build the dual encoder that a folder describes, without weights; refuse a folder of one side alone."""
    config = read_family_config(family, folder)
    if not _is_whole(config):
        raise InputError(f"{folder / CONFIG}: the vision side alone; as a base take the whole model")
    return build(transformers.AutoModel.from_config, config, folder, device, precision)


def check_side_or_whole(family: str, folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is neither a family's model nor its vision side, from configuration and headers."""
    config, make = read_family_config(family, folder), transformers.AutoModel.from_config
    may_lack = TEXT_SIDE if _is_whole(config) else ()
    check_parameter_names(make, config, folder, checkpoint, may_lack=may_lack, prefix=PREFIX)


def _is_whole(config: Any) -> bool:
    return hasattr(config, "text_config")


def _unit(embeddings: Tensor) -> Tensor:
    return embeddings / embeddings.norm(p=2, dim=-1, keepdim=True)
