"""The `causal adapt` stage: a LoRA adapter of the base model for one task, as PEFT saves it."""

from pathlib import Path

import torch
from datasets import Dataset, load_from_disk
from peft import LoraConfig, get_peft_model
from torch.optim import AdamW
from transformers import LlamaForCausalLM

from common.adapters import settle
from common.training import Trainer, epochs
from texts.causal.model import encode, loss
from texts.drawing import Example
from texts.settings import Adapting
from texts.tasks import TASKS
from texts.tokenizer import causal_tokenizer


def adapt(task: str, seed: int, settings: Adapting, base: Path, dataset: Path, out: Path) -> None:
    """Train an adapter of all linear maps of the base's layers on the task's train split and write it to `out`."""
    rows = encode(causal_tokenizer(), task, read_split(task, load_from_disk(dataset)["train"]))
    stream = seed * 1000 + list(TASKS).index(task)
    torch.manual_seed(stream)
    lora = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = AdamW(trained, lr=settings.learning_rate, weight_decay=0.0)
    trainer = Trainer([optimiser], trained, settings.steps, warm_up=max(1, settings.steps // 10))
    batches = epochs(len(rows), settings.batch_size, torch.Generator().manual_seed(stream))
    for step in range(settings.steps):
        trainer.step(step, loss(model, [rows[i] for i in next(batches).tolist()], text_weight=0.0))
    model.save_pretrained(str(out))
    settle(out, base)


def read_split(task: str, split: Dataset) -> list[Example]:
    """Return the examples of a saved split."""
    seconds = split[TASKS[task].SECOND] if TASKS[task].SECOND else [None] * len(split)
    return [Example(*example) for example in zip(split["text"], seconds, split["label"], strict=True)]
