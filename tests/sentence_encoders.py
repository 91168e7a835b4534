"""Tiny encoders as sentence-transformers saves them, and their embeddings by a plain loop over transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from tests.every_class import build
from tests.tiny_transformers import TOKENS, tokenizer

CLASSES = {"bert": "BertModel", "roberta": "RobertaModel", "mpnet": "MPNetModel"}
PACKAGE = "sentence_transformers.models"
FLAGS = {  # of versions before 6
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# a text's states (L, D) to its vector (D,)
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(dim=0).values,
    "mean": lambda states: states.mean(dim=0),
    "mean_sqrt_len_tokens": lambda states: states.sum(dim=0) / len(states) ** 0.5,
    "weightedmean": lambda states: torch.arange(1.0, len(states) + 1) @ states / sum(range(1, len(states) + 1)),
    "lasttoken": lambda states: states[-1],
}


def write_encoder(folder: Path, kind: str = "bert", modes: Sequence[str] = ("mean",), seed: int = 0, **how: Any) -> Any:
    """Draw an encoder and write it, its tokenizer and the files of sentence-transformers; return it.

    `how`: of `write_files`.
    """
    config = build(f"{CLASSES[kind].removesuffix('Model')}ForMaskedLM").config
    for name, token in TOKENS.items():
        setattr(config, name, token)
    torch.manual_seed(seed)
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    write_files(folder, modes, **how)
    return model


def write_files(
    folder: Path, modes: Sequence[str] = ("mean",), normalized: bool = False, old: bool = True, **sentences: Any
) -> None:
    """Write what sentence-transformers writes beside a model; `sentences`: keys of sentence_bert_config.json."""
    places = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "", "type": f"{PACKAGE}.{name}"}
        for number, name in enumerate(places)
    ]
    flags = {flag: mode in modes for mode, flag in FLAGS.items()} | {"word_embedding_dimension": 16}
    edit(folder, "modules.json", modules)
    named = {"embedding_dimension": 16, "pooling_mode": list(modes) if len(modes) > 1 else modes[0]}
    edit(folder, "1_Pooling/config.json", flags if old else named)
    edit(folder, "sentence_bert_config.json", {"max_seq_length": 30, **sentences})
    edit(folder, "config_sentence_transformers.json", {"prompts": {"query": ""}, "default_prompt_name": None})


def edit(folder: Path, name: str, content: Any) -> None:
    """Write a file of JSON, in place of one that is there."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def embeddings_one_by_one(
    folder: Path, texts: Sequence[str], modes: Sequence[str] = ("mean",), normalized: bool = False, **options: Any
) -> np.ndarray:
    """Embed each text alone, nothing padded."""
    model, words, found = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), []
    with torch.inference_mode():
        for text in texts:
            (states,) = model(**words(text, return_tensors="pt", truncation=True, **options)).last_hidden_state
            vector = torch.cat([POOL[mode](states) for mode in modes])
            found.append((vector / vector.norm() if normalized else vector).numpy())
    return np.stack(found)
