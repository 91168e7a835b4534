"""Image classifiers of timm with a task's own head: built by timm from its configuration, without weights or a hub.

`config.json` is the one that timm's `save_for_hf` writes: `architecture`, `model_args`, `pretrained_cfg`. The library
takes seconds to import, and only building a network needs it.
Shape legend: B pictures of H x W pixels, C classes.
"""

from collections.abc import Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.bounded import bounded
from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.weight_files import weight_bytes
from merganser.checkpoints.writing import TORCH
from merganser.errors import InputError, did_you_mean, quoting
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import check_names, read_family_config
from merganser.models.image_classifier import ImageClassifier
from merganser.models.naming import Naming, naming_of
from merganser.models.pictures import MOST_A_SIDE, picture, ramp, stacked

MODEL_TYPES = ("timm_wrapper",)  # transformers' name of a model of timm
LIBRARY = "timm"
PIPELINES = {"timm_wrapper": "image-classification"}
LEFT_OUT = ("*relative_position_index", "*relative_coords_table", "*attn_mask")  # stored by older versions of timm


class TimmClassifier(ImageClassifier):
    """A classifier of timm, with timm's own transform for its `pretrained_cfg`."""

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Resize and crop PIL images or uint8 arrays (height, width, 3) as timm's transform: uint8 (B, 3, H, W)."""
        resize = self._steps[0]
        return stacked(resize(picture(image).convert("RGB")) for image in images)

    @cached_property
    def _levels(self) -> Tensor:
        levels: Tensor = self._steps[1](ramp())
        return levels[:, :, 0].contiguous().to(self.device)

    @cached_property
    def _steps(self) -> tuple[Any, Any]:
        """Return timm's transform for inference in two parts: resize and crop, then scale and normalise."""
        from timm.data import create_transform, resolve_model_data_config
        from torchvision.transforms import Compose

        with quoting(f"{self.folder / CONFIG}: timm cannot make the transform of pictures"):
            data = resolve_model_data_config(self.module)
            channels, *sides = data["input_size"]
            if channels != 3 or max(sides) / data["crop_pct"] > MOST_A_SIDE:
                raise ValueError(f"input_size {data['input_size']}, not 3 channels of at most {MOST_A_SIDE} pixels")
            *resize, scale, normalise = create_transform(**data).transforms
        return Compose(resize), Compose([scale, normalise])

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(self._normalised(inputs))
        return logits


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> TimmClassifier:
    """Build the classifier that a folder describes, with so many outputs, without weights."""
    module = _build(folder, outputs).to(device, TORCH[precision])
    return TimmClassifier(module, folder, _naming(module, folder), heads_of(module))


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not timm's, or lacks a parameter besides the head's, by configuration and headers."""
    with torch.device("meta"):
        module = _build(folder, tensors=len(checkpoint.names))
    check_names(module, _naming(module, folder), checkpoint, [f"{head}.*" for head in heads_of(module)])


def heads_of(module: Any) -> tuple[str, ...]:
    """Name the modules of a model that score classes, by its `pretrained_cfg`; a distilled DeiT has two."""
    named = module.pretrained_cfg.get("classifier") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def _naming(module: Any, folder: Path) -> Naming:
    return naming_of(module, folder, LEFT_OUT, prefix="")


def _build(folder: Path, outputs: int | None = None, tensors: int | None = None) -> Any:
    """Build a model for inference; raise InputError for an architecture or argument that refers elsewhere."""
    import timm

    config, where = read_family_config("timm", folder), folder / CONFIG
    name = config.architecture
    if name not in timm.list_models():  # nor a model on a hub, such as hf-hub:timm/resnet18
        fix = f"write a name of timm.list_models(), or upgrade timm{did_you_mean(str(name), timm.list_models())}"
        raise InputError(f"{where}: architecture: timm {timm.__version__} has no model {name!r}; {fix}")
    if reserved := sorted(signature(timm.create_model).parameters.keys() & (config.model_args or {})):
        raise InputError(f"{where}: model_args.{reserved[0]}: reserved for the caller of timm.create_model; remove it")
    with quoting(f"{where}: timm cannot build this model"), no_init_weights(), bounded(weight_bytes(folder), tensors):
        return timm.create_model(f"local-dir:{folder}", pretrained=False, num_classes=outputs).eval()
