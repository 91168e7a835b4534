"""The stage `finetune`: train all of the base, and a new head, on one task."""

from pathlib import Path

import torch
from datasets import load_from_disk
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from transformers import AutoImageProcessor, AutoModelForImageClassification
from transformers.utils import logging

from common.stages import Finetuning
from common.training import Trainer, epochs

HEAD_RATE = 1e-3


def finetune(seed: int, settings: Finetuning, base: Path, dataset: Path, out: Path) -> None:
    """Fine-tune the base on the data set's train split, and write the classifier and its image processor to `out`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    train = load_from_disk(dataset)["train"]
    processor = AutoImageProcessor.from_pretrained(base, backend="pil")
    labels, names = torch.tensor(train["label"]), train.features["label"].names
    torch.manual_seed(seed)  # of the head
    said = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    model = AutoModelForImageClassification.from_pretrained(base, **said).train()
    groups = [
        {"params": list(model.base_model.parameters()), "lr": settings.learning_rate},
        {"params": list(model.classifier.parameters()), "lr": HEAD_RATE},
    ]
    warm_up = max(1, settings.steps // 10)
    trainer = Trainer([AdamW(groups, weight_decay=0.01)], model.parameters(), settings.steps, warm_up)
    batches = epochs(len(labels), settings.batch_size, torch.Generator().manual_seed(seed))
    for step in range(settings.steps):
        batch = next(batches)
        pictures = [picture.convert("RGB") for picture in train[batch.tolist()]["image"]]
        logits = model(**processor(pictures, return_tensors="pt")).logits
        trainer.step(step, cross_entropy(logits, labels[batch]))
    model.save_pretrained(out)
    processor.save_pretrained(out)
