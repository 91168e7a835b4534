"""Pictures prepared by a checkpoint's own image processor, stored as bytes and normalised on reading.

Shape legend: B pictures of H x W pixels.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merganser.errors import InputError, quoting
from merganser.models import Inputs

MOST_A_SIDE = 2**13  # pixels of a picture once it is resized
MOST_TIMES = 256  # that a side is longer: one pixel by 200,000 resized to 224 by 44,800,000 would take 30 GB
DEEP = ("I", "F")  # how the modes of PIL begin whose levels do not end at 255
SAMPLE = (45, 60)  # height and width of the picture that an image processor is checked with


class PictureModule:
    """The base class of networks of pictures, with the transformers image processor of their folder."""

    module: Any
    device: torch.device
    folder: Path

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3) by the folder's processor: (B, 3, H, W)."""
        return _as_bytes(self._processor, [picture(image).convert("RGB") for image in images])

    def _normalised(self, inputs: Inputs) -> Tensor:
        """Scale and normalise pixels by the processor's value for each level: bit for bit its own result."""
        return _by_level(inputs["pixels"].to(self.device), self._levels, next(self.module.parameters()).dtype)

    @cached_property
    def _levels(self) -> Tensor:
        return _levels_of(self._processor).to(self.device)

    @cached_property
    def _processor(self) -> Any:
        """Open the folder's image processor in its PIL version, which agrees with OpenAI's and open_clip's transforms.

        The torchvision version, the default of transformers 5, resizes to levels that are one higher or lower.
        Raises InputError if, after resizing, the processor's result is not a function of each byte alone.
        """
        import transformers  # seconds, which a command that runs no model saves

        with quoting(f"{self.folder}: transformers cannot make the image processor"):
            made = transformers.AutoImageProcessor.from_pretrained(
                self.folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
            sides = [side for sizes in (made.size, made.crop_size) for side in dict(sizes or {}).values() if side]
            if any(side > MOST_A_SIDE for side in sides):
                raise ValueError(f"pictures of {max(sides)} pixels a side, and no model has more than {MOST_A_SIDE}")
            noise = np.random.default_rng(0).integers(0, 256, (*SAMPLE, 3), dtype=np.uint8)
            expected = made([picture(noise)], return_tensors="pt").pixel_values
            pixels_made = _by_level(_as_bytes(made, [picture(noise)]), _levels_of(made), expected.dtype)
        if not torch.equal(pixels_made, expected):
            how = "does more to a picture than to resize, crop, scale and normalise it"
            raise InputError(f"{self.folder}: {type(made).__name__} {how}, which Merganser does not do")
        return made


def _as_bytes(processor: Any, images: Sequence[Any]) -> Tensor:
    """Resize and crop PIL images as a processor does before scaling: uint8 (B, 3, H, W)."""
    # EfficientNet's divides by the deviation once more, whatever is said of normalising
    more = {"include_top": False} if hasattr(processor, "include_top") else {}
    pixels: Tensor = processor(
        list(images), do_rescale=False, do_normalize=False, return_tensors="pt", **more
    ).pixel_values
    return pixels


def _levels_of(processor: Any) -> Tensor:
    """Return a processor's value for each level of each channel: (3, 256)."""
    made = processor([ramp()], do_resize=False, do_center_crop=False, return_tensors="pt")
    levels: Tensor = made.pixel_values[0, :, :, 0].contiguous()
    return levels


def _by_level(pixels: Tensor, levels: Tensor, dtype: torch.dtype) -> Tensor:
    """Replace each byte of pixels (B, 3, H, W) by the value of its level and channel."""
    made = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    for channel, values in enumerate(levels):
        looked_up = values.index_select(0, pixels[:, channel].flatten().int())
        made[:, channel] = looked_up.view_as(pixels[:, channel])
    return made


def ramp() -> Any:
    """Return a picture of all levels, one per row, equal in all channels: 256 x 1 pixels."""
    return picture(np.arange(256, dtype=np.uint8).reshape(256, 1, 1).repeat(3, axis=2))


def stacked(images: Iterable[Any]) -> Tensor:
    """Stack PIL images or uint8 arrays (height, width, 3) of one size: uint8 (B, 3, H, W)."""
    arrays = [checked_picture(np.asarray(image)) for image in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def picture(image: Any) -> Any:
    """Return a PIL image, also from a uint8 array (height, width, 3)."""
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(checked_picture(image))
    if max(image.size) > MOST_TIMES * min(image.size):
        what = f"an image is {image.width} x {image.height} pixels, one side more than {MOST_TIMES} times the other"
        raise InputError(f"{what}; crop it, or leave it out")
    if image.mode.startswith(DEEP):
        how = f"an image has more than 8 bits a channel (mode {image.mode}), which conversion to RGB cuts off"
        raise InputError(f"{how}; scale the data's images to 8 bits")
    return image


def checked_picture(array: np.ndarray) -> np.ndarray:
    """Refuse an array that is not a uint8 picture (height, width, 3)."""
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise InputError(f"an image is {array.dtype} {list(array.shape)}; expected uint8 (height, width, 3)")
    return array
