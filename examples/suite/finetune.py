"""The `finetune` stage: train the base model's image tower on one task, against the task's frozen class head."""

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, load_from_disk
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW

from common.stages import Finetuning
from common.training import Trainer, epochs
from suite.model import class_head, load_model, normalise, save_weights
from suite.tasks import TASKS


def finetune(task: str, seed: int, settings: Finetuning, base: Path, dataset: Path, out: Path) -> None:
    """Fine-tune the base on the task's train split and write the image tower's weights, alone, to `out`."""
    model, tokenizer = load_model(base)
    head = class_head(model, tokenizer, TASKS[task].CLASS_NAMES, TASKS[task].TEMPLATES)
    images, labels = read_split(load_from_disk(dataset)["train"])
    generator = torch.Generator().manual_seed(seed * 1000 + list(TASKS).index(task))
    train_on_task(model.visual, head, images, labels, settings, generator)
    save_weights({f"visual.{name}": weight for name, weight in model.visual.state_dict().items()}, out)


def read_split(split: Dataset) -> tuple[Tensor, Tensor]:
    """Return the split's images, N x 3 x S x S and normalised, and its labels."""
    pixels = np.stack([np.asarray(image) for image in split["image"]])
    return normalise(pixels), torch.tensor(split["label"])


def train_on_task(
    tower: torch.nn.Module,
    head: Tensor,
    images: Tensor,
    labels: Tensor,
    settings: Finetuning,
    generator: torch.Generator,
) -> None:
    """Train the image tower in place."""
    optimiser = AdamW(tower.parameters(), lr=settings.learning_rate, weight_decay=0.1, betas=(0.9, 0.999))
    trainer = Trainer([optimiser], tower.parameters(), settings.steps, warm_up=max(1, settings.steps // 10))
    batches = epochs(len(images), settings.batch_size, generator)
    tower.train()
    for step in range(settings.steps):
        batch = next(batches)
        logits = functional.normalize(tower(images[batch]), dim=-1) @ head.T
        trainer.step(step, functional.cross_entropy(logits, labels[batch]))
