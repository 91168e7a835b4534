"""Encoders that classify the words of a text: BERT, RoBERTa, DeBERTa-v3 and others of transformers.

Shape legend: B texts, W words, L tokens, C classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForTokenClassification
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.models import DeviceName, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.families.encoder import LEFT_OUT
from merganser.models.families.encoder import MODEL_TYPES as ENCODERS
from merganser.models.texts import open_tokenizer
from merganser.models.token_network import TokenNetwork

TRUNKS_OF = "encoder"
MODEL_TYPES = modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.keys() & ENCODERS
LIBRARY = "transformers"
PIPELINES = {"ForTokenClassification": "token-classification"}
MAKE = AutoModelForTokenClassification.from_config
HEADS = ("classifier", "score")
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have


class WordClassifier(TokenNetwork):
    """An encoder with a head for each word's class, which is that of its first token."""

    def encode_words(self, texts: Sequence[Sequence[str]], max_length: int) -> tuple[dict[str, Tensor], Tensor]:
        """Tokenise texts that are split into words, and find each word's first token, as `ScoresWords` says."""
        rows = [list(words) for words in texts]
        how = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
        encoded = self._splitting(rows, is_split_into_words=True, **how)
        places = [_first_tokens(encoded.word_ids(row), len(words)) for row, words in enumerate(rows)]
        return self.within_positions(encoded), pad_sequence(places, batch_first=True, padding_value=-1)

    @property
    def _splitting(self) -> Any:
        """Return a tokenizer that treats the first word like the others, as if a space preceded it."""
        if getattr(self.tokenizer, "add_prefix_space", True):
            return self.tokenizer
        return open_tokenizer(self.naming.where, self.module.config, add_prefix_space=True)

    def _scores(self, answer: Any) -> Tensor:
        logits: Tensor = answer.logits
        return logits


def _first_tokens(words: Sequence[int | None], count: int) -> Tensor:
    """Return the place of each word's first token, given each token's word; -1 for a word without one.

    >>> _first_tokens([None, 0, 0, 2, None], 4).tolist()
    [1, -1, 3, -1]
    """
    places = torch.full((count,), -1, dtype=torch.int32)
    for token in range(len(words) - 1, -1, -1):
        word = words[token]
        if word is not None:
            places[word] = token
    return places


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> WordClassifier:
    """Build the classifier of words that a folder describes, with so many outputs, without weights."""
    config = read_family_config("token_classifier", folder, outputs)
    return WordClassifier(build(MAKE, config, folder, device, precision), folder, LEFT_OUT, HEADS)


def check(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Refuse a checkpoint that is not such an encoder, or lacks a parameter of one, by configuration and headers."""
    config = read_family_config("token_classifier", folder)
    return check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)
