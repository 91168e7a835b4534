"""Sound classifiers with a task's own head: wav2vec2, HuBERT, WavLM, Whisper's encoder, AST and others of transformers.

A whole Whisper can be the base; its decoder is left out.
"""

from pathlib import Path
from typing import Any

from transformers import AutoModelForAudioClassification
from transformers.models.auto import modeling_auto

from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import DeviceName, Precision
from merganser.models.audio_classifier import HEADS, AudioClassifier
from merganser.models.configurations import build, check_parameter_names, read_family_config

MODEL_TYPES = modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.keys()
LIBRARY = "transformers"
PIPELINES = {
    "ForAudioClassification": "audio-classification",
    "Data2VecAudioForSequenceClassification": "audio-classification",
    "HubertForSequenceClassification": "audio-classification",
    "SEWDForSequenceClassification": "audio-classification",
    "SEWForSequenceClassification": "audio-classification",
    "UniSpeechForSequenceClassification": "audio-classification",
    "UniSpeechSatForSequenceClassification": "audio-classification",
    "Wav2Vec2BertForSequenceClassification": "audio-classification",
    "Wav2Vec2ConformerForSequenceClassification": "audio-classification",
    "Wav2Vec2ForSequenceClassification": "audio-classification",
    "WavLMForSequenceClassification": "audio-classification",
}
MAKE = AutoModelForAudioClassification.from_config
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have
# Heads of the pretraining and of recognition, what stands for masked frames in training, and Whisper's decoder.
LEFT_OUT = (
    *("quantizer.*", "project_q.*", "project_hid.*", "ctc_proj.*", "lm_head.*", "speaker_proj.*"),
    *("label_embeddings_concat", "final_proj.*", "*masked_spec_embed", "decoder.*", "model.decoder.*", "proj_out.*"),
)


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> AudioClassifier:
    """Build the classifier that a folder describes, with so many outputs, without weights."""
    config = _config_of(folder, outputs)
    return AudioClassifier(build(MAKE, config, folder, device, precision), folder, LEFT_OUT)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not such a classifier, or lacks a parameter of one, by configuration and headers."""
    config = _config_of(folder)
    check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)


def _config_of(folder: Path, outputs: int | None = None) -> Any:
    """Read a configuration; refuse a head that reads all layers: then the trunk needs the base's own head."""
    config = read_family_config("audio", folder, outputs)
    if getattr(config, "use_weighted_layer_sum", False):
        what = "use_weighted_layer_sum: the head reads every layer, which Merganser does not do"
        raise InputError(f"{folder / CONFIG}: {what}; fine-tune with it set to false")
    return config
