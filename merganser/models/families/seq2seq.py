"""Encoders with a decoder, which write text or are classifiers: T5, Flan-T5 and others of transformers.

Shape legend: B texts, D features, V words: a writer's classes are the first words of the answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, GenerationConfig
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.generation import generated, greedy, log_likelihood, step_logits
from merganser.models.naming import naming_of
from merganser.models.sequence_classifier import SequenceClassifier, build_classifier, has_head
from merganser.models.texts import NEW_TOKENS, TextModule, in_groups, ordinary_tokens, ready

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


class Seq2SeqNetwork(TextModule):
    """A model that reads a text and generates another one."""

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, folder, naming_of(module, folder))
        self._settings: GenerationConfig = greedy(folder, module.config)
        self._start = self._settings.decoder_start_token_id
        if self._start is None:
            raise InputError(f"{folder}: config.json has no decoder_start_token_id, and every answer begins with it")

    @torch.inference_mode()
    def features(self, inputs: Inputs) -> Tensor:
        """Return the decoder's state at the first token of the answer (B, D)."""
        return self._batched(self._features, inputs)

    def _features(self, inputs: Inputs) -> Tensor:
        batch = ready(inputs, self.device)
        answer = self.module(**batch, decoder_input_ids=self._starts(batch), output_hidden_states=True)
        states: Tensor = answer.decoder_hidden_states[-1]
        return states[:, 0]

    @torch.inference_mode()
    def generate(self, inputs: Inputs, max_new_tokens: int) -> list[str]:
        """Answer each text greedily."""
        if self.batching in ("padded", None):
            return self._answered(inputs, max_new_tokens)
        return in_groups(inputs, lambda batch: self._answered(batch, max_new_tokens), self.batching)

    def _answered(self, inputs: Inputs, max_new_tokens: int) -> list[str]:
        tokens = generated(self.module, ready(inputs, self.device), self._settings, max_new_tokens)
        texts: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts

    @torch.inference_mode()
    def rank(self, inputs: Inputs, options: Sequence[str]) -> Tensor:
        """Return the log-likelihood of each option as the whole answer to each text (B, options)."""
        return self._batched(lambda batch: self._ranked(batch, options), inputs)

    def _ranked(self, inputs: Inputs, options: Sequence[str]) -> Tensor:
        batch = ready(inputs, self.device)
        encoded = self.module.get_encoder()(**batch)
        return torch.stack([self._likelihood(batch, encoded, option) for option in options], dim=1)

    def _probed(self, inputs: Inputs) -> Tensor:
        token = ordinary_tokens(self.tokenizer)[0]
        steps = step_logits(self.module, ready(inputs, self.device), self._settings, token, NEW_TOKENS)
        return torch.cat([self._run(inputs), steps], dim=1)

    def _likelihood(self, batch: Inputs, encoded: Any, option: str) -> Tensor:
        tokens = self.tokenizer(text_target=option, return_tensors="pt").input_ids.to(self.device)
        answers = tokens.expand(len(batch["input_ids"]), -1)
        before = torch.cat([self._starts(batch), answers[:, :-1]], dim=1)
        answer = self.module(
            encoder_outputs=encoded,
            attention_mask=batch["attention_mask"],
            decoder_input_ids=before,
        )
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
    config = read_family_config("seq2seq", folder)
    if outputs is not None:
        return SequenceClassifier(build_classifier(config, folder, outputs, device, precision), folder, WORDS)
    return Seq2SeqNetwork(build(MAKE, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of another kind of model, or lacks a parameter, from its configuration and headers alone."""
    config = read_family_config("seq2seq", folder)
    if has_head(checkpoint):
        make = AutoModelForSequenceClassification.from_config
        check_parameter_names(make, config, folder, checkpoint, left_out=WORDS)
    else:
        check_parameter_names(MAKE, config, folder, checkpoint)
