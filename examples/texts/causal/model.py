"""The tiny Llama: 4 layers of width 128, 0.9 M parameters; its prompts and the loss on them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from texts.drawing import Example
from texts.tasks import TASKS
from texts.tokenizer import END, PAD, SPECIAL

LAYERS, WIDTH, HEADS = 4, 128, 4


def new_model(vocabulary: int) -> LlamaForCausalLM:
    """Return an untrained model."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            bos_token_id=None,
            pad_token_id=SPECIAL[PAD],
            eos_token_id=SPECIAL[END],
        )
    )


def prompt(task: str, text: str, second: str | None) -> str:
    """Return what the model is asked: the second text first, for a question is easier if known, and the cue last."""
    return " ".join(filter(None, [second, text, TASKS[task].CUE]))


def encode(tokenizer: PreTrainedTokenizerFast, task: str, examples: Iterable[Example]) -> list[list[int]]:
    """Return rows of token ids: the prompt, the answer and the end token."""
    answered = [f"{prompt(task, x.text, x.second)} {TASKS[task].ANSWERS[x.answer]} {END}" for x in examples]
    return tokenizer(answered)["input_ids"]


def loss(model: torch.nn.Module, rows: Sequence[Sequence[int]], text_weight: float) -> Tensor:
    """Return the language-modelling loss, in which the answer counts 1 and every other token `text_weight`."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[SPECIAL[PAD]] * (longest - len(row))] for row in rows])
    ends = torch.tensor([len(row) for row in rows])[:, None]
    logits, targets = model(input_ids=ids).logits[:, :-1], ids[:, 1:]
    places = torch.arange(targets.shape[1])[None]
    weights = torch.where(places == ends - 3, 1.0, text_weight) * (places < ends - 1)
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (losses * weights).sum() / weights.sum()
