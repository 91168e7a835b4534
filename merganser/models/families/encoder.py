"""Encoders with a task's own head over one or two texts: BERT, RoBERTa, DeBERTa-v3 and others of transformers."""

from pathlib import Path

from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.linear_maps import WithBlocks
from merganser.models.sequence_classifier import CLASSIFIER, SequenceClassifier

UNSUPPORTED = {
    "funnel": "fails in transformers on a text of fewer than five tokens",
    "neomme": "has no classifier in transformers",
    "nystromformer": "reads texts of one length alone",
    "perceiver": "has its head inside the model",
    "xmod": "needs the language of each text",
}
MODEL_TYPES = (
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()
    - modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys()
    - UNSUPPORTED.keys()
)
LIBRARY = "transformers"
PIPELINES = {"ForSequenceClassification": "text-classification"}
# Heads of the pretraining, and the pooler that only some architectures have.
LEFT_OUT = (
    *("cls.*", "lm_head.*", "lm_predictions.*", "mask_predictions.*", "predictions.*", "discriminator_predictions.*"),
    *("generator_*", "vocab_*", "sop_classifier.*", "decoder.*", "qa_outputs.*", "*pooler.*"),
)
HEADS = ("classifier.*", "pre_classifier.*", "*pooler.*")  # a task's own, which a base need not have


class EncoderNetwork(SequenceClassifier, WithBlocks):
    """An encoder with its head, classes or one number."""

    # of BERT and what follows it; of DistilBERT
    mlps = (("intermediate.dense", "output.dense"), ("ffn.lin1", "ffn.lin2"))


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> EncoderNetwork:
    """Build the classifier that a folder describes, without weights."""
    config = read_family_config("encoder", folder, outputs)
    return EncoderNetwork(build(CLASSIFIER, config, folder, device, precision), folder, LEFT_OUT)


def check(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Refuse a checkpoint that is not an encoder, or lacks a parameter of one, by its configuration and headers."""
    config = read_family_config("encoder", folder)
    return check_parameter_names(CLASSIFIER, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEADS)
