"""SigLIP of transformers: a dual encoder trained to tell for each picture and text whether they match.

The logit of a class is its cosine times a scale plus a bias, both learned; its sigmoid is the probability that the two
match. A zero-shot answer is the class of the highest logit: scale and bias, the same for all classes, change no answer,
and the bias no softmax either. Texts are padded to the length of the model, whose last token is what they are embedded
by. This includes SigLIP 2's models of one resolution, whose configuration says `siglip`.
"""

from pathlib import Path

from torch import Tensor

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Precision
from merganser.models.dual_encoder_module import DualEncoderModule, build_whole, check_side_or_whole

MODEL_TYPES = ("siglip", "siglip_vision_model")
MERGED = ("vision_model.*",)  # of the texts the class heads are made, which all tasks share
LIBRARY = "transformers"
PIPELINES = {"SiglipModel": "zero-shot-image-classification"}


class SiglipNetwork(DualEncoderModule):
    """A dual encoder whose logits have a bias.

    The query, key and value projections of its pooling head are one parameter, which is no linear map: queries come
    from a learned vector, the others from the picture.
    """

    padding = "max_length"

    def _scored(self, features: Tensor) -> Tensor:
        return super()._scored(features) + self.module.logit_bias.detach()


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> SiglipNetwork:
    """Build the dual encoder in a folder's configuration; its class heads come from prompts of any number."""
    return SiglipNetwork(build_whole("siglip", folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is neither a SigLIP nor its vision tower, by its configuration and headers alone."""
    check_side_or_whole("siglip", folder, checkpoint)
