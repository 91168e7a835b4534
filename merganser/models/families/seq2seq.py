"""Encoders with a decoder, which write text or are classifiers: T5, Flan-T5 and others of transformers.

Shape legend: B texts, D features, V words: a writer's classes are the first words of the answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, read_family_config
from merganser.models.generation import Writer, log_likelihood
from merganser.models.naming import naming_of
from merganser.models.sequence_classifier import CLASSIFIER, SequenceClassifier, check_writer_or_classifier
from merganser.models.texts import ready

UNSUPPORTED = {
    "audioflamingo3": "reads sound",
    "glmasr": "reads sound",
    "granite_speech": "reads sound",
    "granite_speech_plus": "reads sound",
    "moss_transcribe_diarize": "reads sound",
    "musicflamingo": "reads sound",
    "nemo_speechlm": "reads sound",
    "qwen2_audio": "reads sound",
    "qwen3_asr": "reads sound",
    "vibevoice_asr": "reads sound",
    "voxtral": "reads sound",
    "voxtral_realtime": "reads sound",
}
MODEL_TYPES = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys() - UNSUPPORTED.keys()
LIBRARY = "transformers"
PIPELINES = {"ForSequenceClassification": "text-classification", "ForConditionalGeneration": "text2text-generation"}
WORDS = ("lm_head.*", "final_logits_bias")  # a writer's output, which a classifier does without
MAKE = AutoModelForSeq2SeqLM.from_config


class Seq2SeqNetwork(Writer):
    """A model that reads a text and generates another one."""

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, folder, naming_of(module, folder))
        self._start = self._settings.decoder_start_token_id
        if self._start is None:
            raise InputError(f"{folder}: config.json has no decoder_start_token_id, and every answer begins with it")

    def _features(self, inputs: Inputs) -> Tensor:
        """Return the decoder's state at the first token of the answer (B, D)."""
        batch = ready(inputs, self.device)
        answer = self.module(**batch, decoder_input_ids=self._starts(batch), output_hidden_states=True)
        states: Tensor = answer.decoder_hidden_states[-1]
        return states[:, 0]

    def _ranked(self, batch: Inputs, options: Sequence[str]) -> Tensor:
        encoded = self.module.get_encoder()(**batch)
        return torch.stack([self._likelihood(batch, encoded, option) for option in options], dim=1)

    def _likelihood(self, batch: Inputs, encoded: Any, option: str) -> Tensor:
        tokens = self.tokenizer(text_target=option, return_tensors="pt").input_ids.to(self.device)
        answers = tokens.expand(len(batch["input_ids"]), -1)
        before = torch.cat([self._starts(batch), answers[:, :-1]], dim=1)
        answer = self.module(encoder_outputs=encoded, attention_mask=batch["attention_mask"], decoder_input_ids=before)
        return log_likelihood(answer.logits, answers)

    def _run(self, inputs: Inputs) -> Tensor:
        batch = ready(inputs, self.device)
        logits: Tensor = self.module(**batch, decoder_input_ids=self._starts(batch)).logits
        return logits[:, 0]

    def _starts(self, batch: Inputs) -> Tensor:
        return torch.full((len(batch["input_ids"]), 1), self._start, device=self.device)


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> Seq2SeqNetwork | SequenceClassifier:
    """Build the writer that a folder describes, or a classifier with so many outputs, without weights."""
    config = read_family_config("seq2seq", folder, outputs)
    if outputs is not None:
        return SequenceClassifier(build(CLASSIFIER, config, folder, device, precision), folder, WORDS)
    return Seq2SeqNetwork(build(MAKE, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of another kind of model, or lacks a parameter, from its configuration and headers alone."""
    check_writer_or_classifier("seq2seq", MAKE, folder, checkpoint, WORDS)
