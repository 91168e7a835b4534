"""The tiny RoBERTa: 3 layers of width 96, 0.38 M parameters, and the tasks' own heads on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification

from texts.tasks import REGRESSION, TASKS
from texts.tokenizer import BEGIN, END, PAD, SPECIAL

LAYERS, WIDTH, HEADS = 3, 96, 4
MIDDLE, SPREAD = 5.0, 3.0  # of the numbers that the regression answers with


def new_model(vocabulary: int, task: str | None = None) -> RobertaForSequenceClassification:
    """Return an untrained model with the task's head; without a task, the configuration of the base."""
    config = RobertaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=52,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        bos_token_id=SPECIAL[BEGIN],
        pad_token_id=SPECIAL[PAD],
        eos_token_id=SPECIAL[END],
        **_labels(task),
    )
    model = RobertaForSequenceClassification(config)
    if task == REGRESSION:
        with torch.no_grad():
            model.classifier.out_proj.weight.mul_(SPREAD)
            model.classifier.out_proj.bias.fill_(MIDDLE)
    return model


def _labels(task: str | None) -> dict[str, Any]:
    if task is None:
        return {}
    if task == REGRESSION:
        return {"num_labels": 1, "problem_type": "regression"}
    names = TASKS[task].ANSWERS
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    return {"problem_type": "single_label_classification", **labels}


def save(
    model: RobertaForSequenceClassification, tokenizer: PreTrainedTokenizerFast, out: Path, head: bool = True
) -> None:
    """Write the model, with or without its head, and the tokenizer as transformers saves them."""
    state = {name: value for name, value in model.state_dict().items() if head or not name.startswith("classifier.")}
    model.save_pretrained(out, state_dict=state)
    tokenizer.save_pretrained(out)


def encode(tokenizer: PreTrainedTokenizerFast, task: str, columns: Mapping[str, Sequence[str]]) -> list[list[int]]:
    """Return the token ids of texts, or of pairs of texts."""
    second = TASKS[task].SECOND
    return tokenizer(list(columns["text"]), list(columns[second]) if second else None)["input_ids"]


def read_split(tokenizer: PreTrainedTokenizerFast, task: str, split: Dataset) -> tuple[list[list[int]], Tensor]:
    """Return the token ids of a saved split and its labels."""
    return encode(tokenizer, task, split), torch.tensor(split["label"])


def hidden(model: RobertaForSequenceClassification, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return what the heads read, B x L x D, of rows of token ids."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[SPECIAL[PAD]] * (longest - len(row))] for row in rows])
    return model.roberta(input_ids=ids, attention_mask=(ids != SPECIAL[PAD]).long()).last_hidden_state


def loss(task: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy; for the regression the mean square of errors, in units of the labels' spread."""
    if task == REGRESSION:
        return functional.mse_loss(logits[:, 0] / SPREAD, labels / SPREAD)
    return functional.cross_entropy(logits, labels)
