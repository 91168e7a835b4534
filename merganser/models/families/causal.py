"""Decoders: GPT-2, Llama, Mistral, Qwen2, Gemma and others of transformers, as language models or as classifiers.

Shape legend: B texts, D features, V words: a language model's classes are the words that may come next.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Inputs, Precision
from merganser.models.configurations import build, read_family_config
from merganser.models.generation import Writer, answer_tokens, log_likelihood
from merganser.models.naming import HEAD_NAMES, naming_of
from merganser.models.sequence_classifier import CLASSIFIER, SequenceClassifier, check_writer_or_classifier
from merganser.models.texts import ready

UNSUPPORTED = {
    "blt": "fails in transformers when it generates",
    "emu3": "reads and draws pictures",
    "gemma4_assistant": "drafts for another model, and reads that one's states",
    "gemma4_unified_assistant": "drafts for another model, and reads that one's states",
    "mllama": "reads pictures",
    "musicgen": "writes sound",
    "musicgen_melody": "writes sound",
    "trocr": "reads pictures",
    "whisper": "reads sound",
}
MODEL_TYPES = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
    - modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()
    - modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys()
    - UNSUPPORTED.keys()
)
LIBRARY = "transformers"
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
WORDS = ("lm_head.*",)  # a language model's output, which a classifier does without
MAKE = AutoModelForCausalLM.from_config


class CausalNetwork(Writer):
    """A language model that continues texts, padded on the left."""

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, with the tokenizer of its folder."""
        super().__init__(module, folder, naming_of(module, folder, HEAD_NAMES), side="left")

    def room(self, tokens: int) -> int | None:
        """Return how many tokens the network can generate after a text of so many; None: any number."""
        return None if self.positions is None else self.positions - tokens

    def _features(self, inputs: Inputs) -> Tensor:
        """Return the state from which the next token is predicted (B, D)."""
        return self._passed(self.module.get_output_embeddings(), inputs)[0][:, -1]

    def _new(self, tokens: Tensor, batch: Inputs) -> Tensor:
        return tokens[:, batch["input_ids"].shape[1] :]

    def _ranked(self, batch: Inputs, options: Sequence[str]) -> Tensor:
        return torch.stack([self._likelihood(batch, option) for option in options], dim=1)

    def _likelihood(self, batch: Inputs, option: str) -> Tensor:
        tokens = torch.tensor([answer_tokens(self.tokenizer, option)], device=self.device)
        answers = tokens.expand(len(batch["input_ids"]), -1)
        both = {
            "input_ids": torch.cat([batch["input_ids"], answers], dim=1),
            "attention_mask": torch.cat([batch["attention_mask"], torch.ones_like(answers)], dim=1),
        }
        logits = self.module(**_placed(both), logits_to_keep=answers.shape[1] + 1).logits
        return log_likelihood(logits[:, :-1], answers)

    def _run(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self.module(**_placed(ready(inputs, self.device)), logits_to_keep=1).logits
        return logits[:, -1]


def _placed(batch: Inputs) -> dict[str, Tensor]:
    """Add the tokens' positions, counted from the first one that is not padding, if there is padding."""
    named = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if batch["attention_mask"].all():
        return named
    return named | {"position_ids": (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)}


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> CausalNetwork | SequenceClassifier:
    """Build the language model that a folder describes, or a classifier with so many outputs, without weights."""
    config = read_family_config("causal", folder, outputs)
    if outputs is not None:
        return SequenceClassifier(build(CLASSIFIER, config, folder, device, precision), folder, WORDS)
    return CausalNetwork(build(MAKE, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not a decoder, or lacks a parameter of one, by its configuration and headers."""
    check_writer_or_classifier("causal", MAKE, folder, checkpoint, WORDS, may_lack=WORDS)
