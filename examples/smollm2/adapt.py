"""The stage `adapt`: a LoRA adapter of the base for one task, as PEFT saves it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import load_from_disk
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from common.adapters import settle
from common.training import Trainer, epochs
from smollm2.settings import Adapting
from smollm2.tasks import TASKS, prompt

IGNORED = -100


def adapt(task: str, seed: int, settings: Adapting, base: Path, dataset: Path, out: Path) -> None:
    """Train an adapter of all linear maps of the base's layers on the task's train split and write it to `out`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(base)
    train = load_from_disk(dataset)["train"]
    rows = [
        (tokenizer.encode(prompt(task, text)), [*tokenizer.encode(f" {answer}"), tokenizer.eos_token_id])
        for text, answer in zip(train["text"], train["answer"], strict=True)
    ]
    stream = seed * 1000 + list(TASKS).index(task)
    torch.manual_seed(stream)
    lora = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = AdamW(trained, lr=settings.learning_rate, weight_decay=0.0)
    trainer = Trainer([optimiser], trained, settings.steps, warm_up=max(1, settings.steps // 10))
    batches = epochs(len(rows), settings.batch_size, torch.Generator().manual_seed(stream))
    for step in range(settings.steps):
        trainer.step(step, loss(model, [rows[i] for i in next(batches).tolist()], tokenizer.pad_token_id))
    model.save_pretrained(str(out))
    settle(out, base)


def loss(model: torch.nn.Module, rows: Sequence[tuple[list[int], list[int]]], pad: int) -> Tensor:
    """Return the language-modelling loss of the answers: what is before them is read, and nothing is learned of it."""
    longest, answer = max(len(read) + len(said) for read, said in rows), max(len(said) for _, said in rows)
    filled = [longest - len(read) - len(said) for read, said in rows]
    ids = torch.tensor([[pad] * more + read + said for more, (read, said) in zip(filled, rows, strict=True)])
    mask = torch.tensor([[0] * more + [1] * (longest - more) for more in filled])
    targets = torch.tensor([[IGNORED] * (answer - len(said)) + said for _, said in rows])
    logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=answer + 1).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
