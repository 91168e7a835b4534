"""Image classifiers with a task's own head: ViT, DeiT, BEiT, Swin, DINOv2, ConvNeXt, ResNet and others of transformers.

Shape legend: B pictures, C classes, D features.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from transformers import AutoModelForImageClassification
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import Change, DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.linear_maps import WithBlocks
from merganser.models.named_module import Maps, NamedModule
from merganser.models.naming import naming_of
from merganser.models.pictures import PictureModule

UNSUPPORTED = {
    "dinat": "needs the package natten",
    "donut-swin": "pads pictures after it normalised them",
    "imagegpt": "reads the colours of a palette, not pixels",
    "perceiver": "has its head inside the model",
    "pp_lcnet": "gives no logits in transformers",
    "shieldgemma2": "reads a text with each picture, and has no head",
    "siglip2": "reads pictures as sequences of patches",
    "timm_wrapper": "is built by timm, from what its configuration names",
}
MODEL_TYPES = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.keys() - UNSUPPORTED.keys()
LIBRARY = "transformers"
PIPELINES = {"ForImageClassification": "image-classification"}
MAKE = AutoModelForImageClassification.from_config
HEADS = ("classifier", "fc", "head", "cls_classifier", "classifier_distill", "distillation_classifier", "dist_head")
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have
# Poolers that a classifier does without, heads of the pretraining, and tables that are computed today.
LEFT_OUT = ("*pooler.*", "lm_head.*", "decoder.*", "*relative_position_index", "*relative_coords_table")


class ImageClassifier(PictureModule, NamedModule, WithBlocks):
    """A network of pictures with a head of the task's own."""

    mlps = (("mlp.fc1", "mlp.fc2"), ("intermediate.dense", "output.dense"), ("mlp.dense1", "mlp.dense2"))

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the image processor of its folder."""
        super().__init__(module, naming_of(module, folder, LEFT_OUT))
        self.folder = folder
        self._heads = [part for name in HEADS for part in _linear_in(getattr(module, name, None))]
        if not self._heads:
            raise InputError(f"{folder}: {type(module).__name__} has no head called {' or '.join(HEADS[:2])}")

    def head_parameters(self) -> frozenset[str]:
        """Name the loaded parameters of the head."""
        own = (name for name, _ in self.module.named_parameters())
        return frozenset(self.stored_name(name) for name in own if name.partition(".")[0] in HEADS)

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Score every class, for inference: (B, C)."""
        return self._run(inputs)

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return what the head sees, for inference: (B, D); raise InputError for a network of two heads."""
        seen: list[Tensor] = []
        hook = self._only_head().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self._run(inputs)
        finally:
            hook.remove()
        return seen[0]

    def forward(self, parameters: Inputs, inputs: Inputs) -> Tensor:
        """Score with these parameters in place of the loaded ones of their names; differentiable: (B, C)."""
        return self.with_parameters(parameters, lambda: self._run(inputs))

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """While the block runs, give the head what `change` makes of the features (B, D)."""
        return self._only_head().register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))

    def _only_head(self) -> Linear:
        if len(self._heads) > 1:
            what = "scores by two heads, which see different features"
            raise InputError(f"{self.folder}: {self.naming.architecture} {what}; no router and no surgery knows which")
        return self._heads[0]

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(pixel_values=self._normalised(inputs)).logits
        return logits

    def _weights(self) -> Maps:
        """Return all weights but the head's, whatever it is called."""
        head = self.head_parameters()
        return {name: found for name, found in super()._weights().items() if self.stored_name(name) not in head}


def _linear_in(head: Any) -> Collection[Linear]:
    return () if head is None else [part for part in head.modules() if isinstance(part, Linear)]


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> ImageClassifier:
    """Build the classifier that a folder describes, with so many outputs, without weights."""
    config = read_family_config("vision", folder)
    if outputs is not None:
        config.num_labels = outputs
    return ImageClassifier(build(MAKE, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not such a classifier, or lacks a parameter of one, by configuration and headers."""
    config = read_family_config("vision", folder)
    check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)
