"""What a transformers configuration says of a checkpoint's tensors: ties, buffers, linear maps stored as in x out.

Names alone do not tell: `attn.c_proj.weight` is out x in to open_clip, and in x out to GPT-2.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.config_numbers import check_numbers
from merganser.checkpoints.tensors import Spec
from merganser.checkpoints.ties import ALWAYS, BY_CONFIG, PREFIXES
from merganser.errors import InputError, refusing
from merganser.limits import parse_json, read_small

CONFIG = "config.json"
CONFIG_LIMIT = 2**24  # bytes: label maps of 20,000 classes are in some

# Layers of transformers' Conv1D, which computes x @ W, by model type.
IN_BY_OUT: Mapping[str, re.Pattern[str]] = dict.fromkeys(
    ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"),
    re.compile(r"(.+\.)?(c_attn|q_attn|c_proj|c_fc)\.weight"),
)
# Constants that older versions stored beside the parameters; the least number of dimensions that tells one from a bias.
BUFFERS = (
    (re.compile(r"(.+\.)?position_ids"), 1),
    (re.compile(r"(.+\.)?(embeddings\.)?token_type_ids"), 1),
    (re.compile(r"(.+\.)?(attn|attention|self_attn)\.bias"), 3),  # GPT-2's causal mask
    (re.compile(r"(.+\.)?(attn|attention|self_attn)\.masked_bias"), 0),
    (re.compile(r"(.+\.)?(rotary_emb|rotary_pos_emb|rotary)\.inv_freq"), 1),
)


@dataclass(frozen=True)
class Architecture:
    """What a checkpoint's `config.json` says; nothing for a checkpoint without one, such as open_clip's."""

    model_type: str | None = None
    tied: bool | None = None  # whether the output embedding is the input's; None where it does not say

    def is_in_by_out(self, name: str, shape: Collection[int]) -> bool:
        """Tell whether a linear map is stored as in x out."""
        pattern = IN_BY_OUT.get(self.model_type or "")
        return pattern is not None and len(shape) == 2 and pattern.fullmatch(name) is not None


def is_buffer(name: str, spec: Spec) -> bool:
    """Tell whether a tensor is a constant that older versions of transformers stored."""
    return any(pattern.fullmatch(name) and len(spec.shape) >= least for pattern, least in BUFFERS)


def known_ties(names: Collection[str], tied: bool | None = None) -> dict[str, str]:
    """List the names that may stand for another one's tensor, and that other one: what transformers ties.

    `tied`: what the configuration says of the output embedding.
    """
    found: dict[str, str] = {}
    for table in (ALWAYS,) if tied is False else (ALWAYS, BY_CONFIG):
        for alias, sources in table.items():
            for prefix in PREFIXES:
                source = next((prefix + name for name in sources if prefix + name in names), None)
                if prefix + alias in names and source is not None:
                    found.setdefault(prefix + alias, source)
    return found


def architecture_of(folder: Path) -> Architecture:
    """Read what a checkpoint's folder says of its architecture; raise InputError if its `config.json` is invalid."""
    config = read_config(folder / CONFIG)
    if config is None:
        return Architecture()
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    tied = config.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    model_type = config.get("model_type")
    known = isinstance(model_type, str)
    return Architecture(model_type if known else None, tied if isinstance(tied, bool) else None)


def read_config(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Read a configuration as `read_object` does; raise InputError too for one with a number that no model has."""
    config = read_object(path, limit)
    check_numbers(config, path)
    return config


def read_object(path: Path, limit: int) -> dict[str, Any] | None:
    """Read a JSON object of at most so many bytes; None where there is no file; raise InputError for anything else."""
    if not path.exists():
        return None
    with refusing(f"{path}: not a configuration", "fetch it again"):
        config = parse_json(read_small(path, limit))
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a configuration, but {type(config).__name__}; fetch it again")
    return config
