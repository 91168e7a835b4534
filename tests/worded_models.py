"""Tiny models with tokenizers of their own: rows of tables by token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tests.transformers_models import DECODER, SIZES

SPECIAL = ("<pad>", "<end>")
LETTERS = [*SPECIAL, *"abcdefgh"]
PIECES = [*SPECIAL, "▁", *"abcdefgh", "▁ab", "cd"]
BYTES = [*SPECIAL, "Ġ", *"abcdefgh", "ab", "Ġab"]
PARTS = [*SPECIAL, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "ab"]
ROWS = dict[str, dict[str, Tensor]]  # by table and token

BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
MODELS: Mapping[str, tuple[Any, Any, dict[str, Any], Sequence[str]]] = {  # class, configuration, its values, tables
    "tied": (tf.LlamaForCausalLM, tf.LlamaConfig, DECODER | {"tie_word_embeddings": True},
        ["model.embed_tokens.weight"]),
    "untied": (tf.LlamaForCausalLM, tf.LlamaConfig, DECODER, ["model.embed_tokens.weight", "lm_head.weight"]),
    "bert": (tf.BertForMaskedLM, tf.BertConfig, SIZES,
        ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]),
    "bart": (tf.BartForConditionalGeneration, tf.BartConfig, BART | {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
        ["model.shared.weight", "final_logits_bias"]),
    "gpt2": (tf.GPT2LMHeadModel, tf.GPT2Config, {"n_embd": 16, "n_layer": 1, "n_head": 2}, ["transformer.wte.weight"]),
}  # fmt: skip


@dataclass(frozen=True)
class Words:
    """A model's tokens in the order of their numbers, and the rows of its tables, if more."""

    tokens: Sequence[str]
    rows: int = 0

    @property
    def size(self) -> int:
        return self.rows or len(self.tokens)


def tokenizer(words: Words, kind: str) -> Any:
    """Build a tokenizer of transformers with these numbers: special ones are added whole."""
    own = [token for token in words.tokens if token in SPECIAL or not token.startswith("<")]
    numbers = {token: words.tokens.index(token) for token in own}
    if kind == "pieces":
        made = Tokenizer(models.Unigram([(token, -float(len(own) - n)) for n, token in enumerate(own)], unk_id=0))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    elif kind == "bytes":
        pairs = [(token[0], token[1]) for token in own if len(token) == 2] + [("Ġ", "ab")]
        made = Tokenizer(models.BPE(numbers, pairs, unk_token="<pad>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    elif kind == "parts":
        made = Tokenizer(models.WordPiece(numbers, unk_token="<pad>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    else:
        made = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    added = [token for token in words.tokens if token not in own]
    if kind != "pieces":  # a vocabulary with gaps, which the added ones fill
        model = json.loads(made.to_str())
        model["model"]["vocab"] |= {token: words.tokens.index(token) for token in added}
        made = Tokenizer.from_str(json.dumps(model))
    made.add_special_tokens(added)
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def drawn(*what: object, shape: Sequence[int], size: float = 0.1) -> Tensor:
    """Draw numbers that are always the same for what they are of."""
    return size * torch.randn(tuple(shape), generator=torch.Generator().manual_seed(crc32(repr(what).encode())))


def save(folder: Path, kind: str, words: Words, task: str, how: str) -> ROWS:
    """Save a model fine-tuned for a task, or the base, with its tokenizer; return the rows by token of each table."""
    made, config, values, tables = MODELS[kind]
    numbers = {f"{name}_token_id": words.tokens.index(token) for name, token in (("pad", "<pad>"), ("eos", "<end>"))}
    model = made(config(**values | {"vocab_size": words.size} | numbers))
    keys = [*words.tokens, *range(len(words.tokens), words.size)]
    rows: ROWS = {table: {} for table in tables}
    tied = {table: model.state_dict()[table].data_ptr() for table in tables}
    for name, tensor in model.state_dict().items():
        if name not in tables and tensor.data_ptr() in tied.values():
            continue
        tuned = drawn(task, name, shape=tensor.shape, size=0 if task == "base" else 0.02)
        if name not in tables:
            tensor.copy_(drawn(name, shape=tensor.shape) + tuned)
            continue
        width = tensor.movedim(tensor.shape.index(words.size), 0)[0].shape
        for row, key in zip(tensor.movedim(tensor.shape.index(words.size), 0), keys, strict=True):
            row.copy_(
                drawn(name, key, shape=width)
                + (0 if task == "base" else drawn(task, name, key, shape=width, size=0.02))
            )
            rows[name][str(key)] = row.clone()
    tf.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer(words, how).save_pretrained(folder)
    return rows
