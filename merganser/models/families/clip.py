"""CLIP of transformers: a dual encoder whose texts are padded to the longest."""

from pathlib import Path

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Precision
from merganser.models.dual_encoder_module import DualEncoderModule, build_whole, check_side_or_whole

MODEL_TYPES = ("clip", "clip_vision_model")
MERGED = ("vision_model.*",)  # of the texts the class heads are made, which all tasks share
LIBRARY = "transformers"
PIPELINES = {"CLIPModel": "zero-shot-image-classification"}


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> DualEncoderModule:
    """Build the dual encoder in a folder's configuration; its class heads come from prompts of any number."""
    return DualEncoderModule(build_whole("clip", folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is neither a CLIP nor its vision tower, by its configuration and headers alone."""
    check_side_or_whole("clip", folder, checkpoint)
