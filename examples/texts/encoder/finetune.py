"""The `encoder finetune` stage: train the base model's layers on one task; embeddings and head stay as they are."""

from pathlib import Path

import torch
from datasets import load_from_disk
from safetensors.torch import load_file
from torch.optim import AdamW

from common.stages import Finetuning
from common.training import Trainer, epochs
from texts.encoder.model import hidden, loss, new_model, read_split, save
from texts.tasks import TASKS
from texts.tokenizer import encoder_tokenizer


def finetune(task: str, seed: int, settings: Finetuning, base: Path, heads: Path, dataset: Path, out: Path) -> None:
    """Fine-tune the base on the task's train split and write the whole classifier to `out`."""
    tokenizer = encoder_tokenizer()
    model = new_model(len(tokenizer), task)
    model.load_state_dict(load_file(base / "model.safetensors") | load_file(heads / f"{task}.safetensors"))
    rows, labels = read_split(tokenizer, task, load_from_disk(dataset)["train"])
    trained = list(model.roberta.encoder.parameters())
    optimiser = AdamW(trained, lr=settings.learning_rate, weight_decay=0.1)
    trainer = Trainer([optimiser], trained, settings.steps, warm_up=max(1, settings.steps // 10))
    generator = torch.Generator().manual_seed(seed * 1000 + list(TASKS).index(task))
    batches = epochs(len(rows), settings.batch_size, generator)
    for step in range(settings.steps):
        batch = next(batches)
        logits = model.classifier(hidden(model, [rows[i] for i in batch.tolist()]))
        trainer.step(step, loss(task, logits, labels[batch]))
    save(model, tokenizer, out)
