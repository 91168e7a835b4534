"""Encoders that find the answer to a question in a text: BERT, RoBERTa, DeBERTa-v3 and others of transformers.

Shape legend: B texts, L tokens, F windows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering
from transformers.models.auto import modeling_auto

from merganser.checkpoints.reading import Checkpoint
from merganser.errors import quoting
from merganser.models import DeviceName, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.families.encoder import LEFT_OUT
from merganser.models.families.encoder import MODEL_TYPES as ENCODERS
from merganser.models.token_network import TokenNetwork

TRUNKS_OF = "encoder"
UNSUPPORTED = {"longformer": "needs exactly three separators in every text"}
MODEL_TYPES = (modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES.keys() & ENCODERS) - UNSUPPORTED.keys()
LIBRARY = "transformers"
PIPELINES = {"ForQuestionAnswering": "question-answering", "ForQuestionAnsweringSimple": "question-answering"}
MAKE = AutoModelForQuestionAnswering.from_config
HEADS = ("qa_outputs", "qa_classifier", "classifier")
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have


class Reader(TokenNetwork):
    """An encoder that scores each token as the answer's first and last."""

    def encode_windows(
        self, questions: Sequence[str], contexts: Sequence[str], max_length: int, stride: int
    ) -> tuple[dict[str, Tensor], Tensor, list[int]]:
        """Tokenise each question with its context, a long one in windows, as `FindsAnswers` says."""
        cut = {"truncation": "only_second", "stride": stride, "return_overflowing_tokens": True}
        how = {"padding": True, "max_length": max_length, "return_offsets_mapping": True, "return_tensors": "pt"}
        with quoting(
            "the questions leave no room for their contexts; set a larger data.max_length, or a smaller stride"
        ):
            encoded = self.tokenizer(list(questions), list(contexts), **cut, **how)
        inputs = self.within_positions(encoded)
        spans, of = inputs.pop("offset_mapping"), inputs.pop("overflow_to_sample_mapping")
        for window, row in enumerate(spans):
            row[torch.tensor([part != 1 for part in encoded.sequence_ids(window)])] = -1
        return inputs, spans.to(torch.int32), of.tolist()

    def _scores(self, answer: Any) -> Tensor:
        return torch.stack([answer.start_logits, answer.end_logits], dim=2)


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> Reader:
    """Build the reader that a folder describes, without weights."""
    config = read_family_config("reader", folder, outputs=2)
    return Reader(build(MAKE, config, folder, device, precision), folder, LEFT_OUT, HEADS)


def check(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Refuse a checkpoint that is not such an encoder, or lacks a parameter of one, by configuration and headers."""
    config = read_family_config("reader", folder, outputs=2)
    return check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)
