"""The `causal pretrain` stage: the base model, on plain sentences and some constructions of all tasks."""

from pathlib import Path

import torch

from common.training import Trainer, epochs, pretraining_optimisers
from texts.causal.model import encode, loss, new_model
from texts.drawing import draw_pretraining
from texts.settings import Pretraining
from texts.tasks import TASKS
from texts.tokenizer import causal_tokenizer

TEXT_WEIGHT = 0.05
REPORT_EVERY = 100


def pretrain(seed: int, settings: Pretraining, out: Path) -> None:
    """Train the base model and write it to `out` with its tokenizer."""
    tokenizer = causal_tokenizer()
    torch.manual_seed(seed)
    model = new_model(len(tokenizer))
    drawn = {task: draw_pretraining(task, seed, settings.texts, settings.plain) for task in TASKS}
    pools = [encode(tokenizer, task, examples) for task, examples in drawn.items()]
    parameters = dict(model.named_parameters())
    trainer = Trainer(
        pretraining_optimisers(parameters, ".layers."),
        parameters.values(),
        settings.steps,
        warm_up=min(50, settings.steps),
    )
    generator = torch.Generator().manual_seed(seed)
    batches = [epochs(len(pool), settings.batch_size, generator) for pool in pools]
    for step in range(settings.steps):
        rows = [pool[i] for pool, chosen in zip(pools, batches, strict=True) for i in next(chosen).tolist()]
        value = loss(model, rows, TEXT_WEIGHT)
        trainer.step(step, value)
        if (step + 1) % REPORT_EVERY == 0:
            print(f"pretrain: step {step + 1} of {settings.steps}, loss {value.item():.3f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
