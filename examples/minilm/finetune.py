"""The stage `finetune`: train all of the base, and a new head, on one task."""

from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from torch.optim import AdamW
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from common.stages import Finetuning
from common.training import Trainer, epochs

HEAD_RATE = 1e-3
TOKENS = 64  # of a text


def finetune(seed: int, settings: Finetuning, base: Path, dataset: Path, out: Path) -> None:
    """Fine-tune the base on the data set's train split, and write the classifier and its tokenizer to `out`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    train = load_from_disk(dataset)["train"]
    texts, labels = list(train["text"]), torch.tensor(train["label"])
    torch.manual_seed(seed)  # of the head and of dropout
    tokenizer = AutoTokenizer.from_pretrained(base)
    head = outputs(getattr(train.features["label"], "names", None))
    model = AutoModelForSequenceClassification.from_pretrained(base, **head).train()
    groups = [
        {"params": list(model.base_model.parameters()), "lr": settings.learning_rate},
        {"params": list(model.classifier.parameters()), "lr": HEAD_RATE},
    ]
    warm_up = max(1, settings.steps // 10)
    trainer = Trainer([AdamW(groups, weight_decay=0.01)], model.parameters(), settings.steps, warm_up)
    batches = epochs(len(texts), settings.batch_size, torch.Generator().manual_seed(seed))
    for step in range(settings.steps):
        batch = next(batches)
        read = tokenizer(
            [texts[i] for i in batch], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        trainer.step(step, model(**read, labels=labels[batch]).loss)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def outputs(classes: list[str] | None) -> dict[str, Any]:
    """Return what a head of some classes, or of one number, is declared as."""
    if classes is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
