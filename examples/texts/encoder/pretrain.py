"""The `encoder pretrain` stage: one encoder and the heads of all tasks, on plain sentences and some constructions."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, RobertaForSequenceClassification

from common.training import Trainer, epochs, pretraining_optimisers
from texts.data import columns
from texts.drawing import draw_pretraining
from texts.encoder.model import encode, hidden, loss, new_model, save
from texts.settings import Pretraining
from texts.tasks import TASKS
from texts.tokenizer import encoder_tokenizer

REPORT_EVERY = 100


def pretrain(seed: int, settings: Pretraining, base: Path, heads: Path) -> None:
    """Train the base model and write it to `base` without a head; each task's head becomes a file in `heads`."""
    tokenizer = encoder_tokenizer()
    torch.manual_seed(seed)
    models = {task: new_model(len(tokenizer), task) for task in TASKS}
    first = next(iter(models.values()))
    train(first, models, {task: read_pool(task, tokenizer, seed, settings) for task in TASKS}, seed, settings)
    whole = new_model(len(tokenizer))
    whole.roberta = first.roberta
    save(whole, tokenizer, base, head=False)
    heads.mkdir(parents=True, exist_ok=True)
    for task, model in models.items():
        save_file(dict(model.classifier.state_dict(prefix="classifier.")), heads / f"{task}.safetensors")


def read_pool(
    task: str, tokenizer: PreTrainedTokenizerFast, seed: int, settings: Pretraining
) -> tuple[list[list[int]], Tensor]:
    """Draw the task's share of pretraining: token ids and labels."""
    drawn = columns(task, draw_pretraining(task, seed, settings.texts, settings.plain))
    return encode(tokenizer, task, drawn), torch.tensor(drawn["label"])


def train(
    first: RobertaForSequenceClassification,
    models: dict[str, RobertaForSequenceClassification],
    pools: dict[str, tuple[list[list[int]], Tensor]],
    seed: int,
    settings: Pretraining,
) -> None:
    """Train the first model's encoder and all the models' heads in place; each step sees as many texts of each task."""
    parameters = dict(first.roberta.named_parameters())
    for task, model in models.items():
        parameters |= dict(model.classifier.named_parameters(prefix=task))
    trainer = Trainer(
        pretraining_optimisers(parameters, ".layer."),
        parameters.values(),
        settings.steps,
        warm_up=min(50, settings.steps),
    )
    generator = torch.Generator().manual_seed(seed)
    batches = {task: epochs(len(rows), settings.batch_size, generator) for task, (rows, _) in pools.items()}
    for step in range(settings.steps):
        chosen = {task: next(batches[task]) for task in models}
        seen = hidden(first, [pools[task][0][i] for task, batch in chosen.items() for i in batch.tolist()])
        parts = zip(chosen.items(), seen.split([len(batch) for batch in chosen.values()]), strict=True)
        losses = [loss(task, models[task].classifier(part), pools[task][1][batch]) for (task, batch), part in parts]
        trainer.step(step, torch.stack(losses).sum())
        if (step + 1) % REPORT_EVERY == 0:
            shown = ", ".join(f"{task} {value.item():.3f}" for task, value in zip(models, losses, strict=True))
            print(f"pretrain: step {step + 1} of {settings.steps}, {shown}", flush=True)
