"""Tiny models of timm, as timm itself builds, saves and loads them, with the methods that transformers has for it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import Tensor
from torch.nn import Module

SIDE = 32  # pixels of a picture's height and width
VIT = {"img_size": SIDE, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
SWIN = {"img_size": SIDE, "patch_size": 2, "embed_dim": 8, "depths": (2, 1), "num_heads": (1, 2), "window_size": 4}
RESNET = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}
CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}


class TimmModel(Module):
    """A model of timm."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of its parameters."""
        return next(self.parameters()).dtype

    def forward(self, pixels: Tensor) -> Tensor:
        """Score every class."""
        scores: Tensor = self.model(pixels)
        return scores

    def save_pretrained(self, folder: Path, max_shard_size: str = "") -> None:
        """Save it as timm does, which writes no shards, for pictures of `SIDE` pixels."""
        save_for_hf(self.model, str(folder), safe_serialization=True, data_config={"input_size": (3, SIDE, SIDE)})

    @classmethod
    def from_pretrained(cls, folder: Path, **_: Any) -> tuple["TimmModel", dict[str, Any]]:
        """Load it strictly, as timm does."""
        return cls(timm.create_model(f"local-dir:{folder}", pretrained=True)), {}


def tiny_timm(architecture: str, outputs: int = 3, **settings: Any) -> TimmModel:
    """Build a model with so many classes; without a head if that is 0."""
    return TimmModel(timm.create_model(architecture, num_classes=outputs, **settings))


MODELS: dict[str, Callable[..., TimmModel]] = {
    "timm/vit": partial(tiny_timm, "vit_tiny_patch16_224", **VIT),
    "timm/deit": partial(tiny_timm, "deit_tiny_patch16_224", **VIT),
    "timm/deit, distilled": partial(tiny_timm, "deit_tiny_distilled_patch16_224", **VIT),
    "timm/beit": partial(tiny_timm, "beit_base_patch16_224", **VIT),
    "timm/swin": partial(tiny_timm, "swin_tiny_patch4_window7_224", **SWIN),
    "timm/swinv2": partial(tiny_timm, "swinv2_tiny_window8_256", **SWIN),
    "timm/resnet": partial(tiny_timm, "resnet18", **RESNET),
    "timm/convnext": partial(tiny_timm, "convnext_atto", **CONVNEXT),
    "timm/convnext, linear": partial(tiny_timm, "convnext_atto", **CONVNEXT, conv_mlp=False),
    "timm/efficientnet": partial(tiny_timm, "test_efficientnet"),
    "timm/mobilenetv3": partial(tiny_timm, "mobilenetv3_small_050"),
    "timm/eva02, rotary": partial(tiny_timm, "eva02_tiny_patch14_224", **VIT),
    "timm/vit, dinov3": partial(tiny_timm, "vit_small_patch16_dinov3", **VIT),
}


def edit_config(folder: Path, **changes: Any) -> None:
    """Set values of a saved model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def random_timm(kind: str, outputs: int = 3, dtype: torch.dtype = torch.float32, seed: int = 0) -> TimmModel:
    """Draw a model with weights and running statistics that no initialisation would give."""
    torch.manual_seed(seed)
    model = MODELS[kind](outputs=outputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, measured in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                measured.add_(0.1 * torch.rand_like(measured))
    return model.to(dtype).eval()
