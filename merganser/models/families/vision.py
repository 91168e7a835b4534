"""Image classifiers with a task's own head: ViT, DeiT, BEiT, Swin, DINOv2, ConvNeXt, ResNet, more of transformers."""

from pathlib import Path

from transformers import AutoModelForImageClassification
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.image_classifier import ImageClassifier
from merganser.models.naming import naming_of

UNSUPPORTED = {
    "dinat": "needs the package natten",
    "donut-swin": "pads pictures after it normalised them",
    "imagegpt": "reads the colours of a palette, not pixels",
    "perceiver": "has its head inside the model",
    "pp_lcnet": "gives no logits in transformers",
    "shieldgemma2": "reads a text with each picture, and has no head",
    "siglip2": "reads pictures as sequences of patches",
    "timm_wrapper": "is of the family timm",
}
MODEL_TYPES = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.keys() - UNSUPPORTED.keys()
LIBRARY = "transformers"
PIPELINES = {"ForImageClassification": "image-classification"}
MAKE = AutoModelForImageClassification.from_config
HEADS = ("classifier", "fc", "head", "cls_classifier", "classifier_distill", "distillation_classifier", "dist_head")
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have
# Poolers that a classifier does without, heads of the pretraining, and tables that are computed today.
LEFT_OUT = ("*pooler.*", "lm_head.*", "decoder.*", "*relative_position_index", "*relative_coords_table")


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> ImageClassifier:
    """Build the classifier that a folder describes, with so many outputs, without weights."""
    config = read_family_config("vision", folder, outputs)
    module = build(MAKE, config, folder, device, precision)
    return ImageClassifier(module, folder, naming_of(module, folder, LEFT_OUT), HEADS)


def check(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Refuse a checkpoint that is not such a classifier, or lacks a parameter of one, by configuration and headers."""
    config = read_family_config("vision", folder)
    return check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)
