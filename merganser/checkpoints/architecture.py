"""What a transformers configuration says of a checkpoint's tensors: ties, buffers, linear maps stored as in x out.

Names alone do not tell: `attn.c_proj.weight` is out x in to open_clip, and in x out to GPT-2.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from merganser.checkpoints.config_numbers import check_numbers
from merganser.checkpoints.known_models import configured
from merganser.checkpoints.tensors import Spec
from merganser.checkpoints.ties import ALWAYS, BY_CONFIG
from merganser.errors import InputError, refusing
from merganser.limits import check_link, parse_json, read_small

CONFIG = "config.json"
TIED = "tie_word_embeddings"
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
# model types that store them still, and are found incomplete without
STORED_TODAY = ("bros", "clap", "clap_text_model", "clvp", "clvp_encoder", "mra", "videoprism", "videoprism_text_model")


@dataclass(frozen=True)
class Architecture:
    """What a checkpoint's `config.json` says; nothing for a checkpoint without one, such as open_clip's."""

    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str | None:
        """Return transformers' name of the architecture."""
        named = self.config.get("model_type")
        return named if isinstance(named, str) else None

    @property
    def says_tied(self) -> bool | None:
        """Return whether it says that the output embedding is the input's; None where it is silent."""
        said = self.config.get(TIED)
        return said if isinstance(said, bool) else None

    @cached_property
    def tied(self) -> bool | None:
        """Return whether transformers takes the output embedding for the input's, by its default too; None: unknown."""
        if self.says_tied is not None:
            return self.says_tied
        made, text = configured(self.config), self.config.get("text_config")
        found = getattr(made, TIED, None) if made else text.get(TIED) if isinstance(text, dict) else None
        return found if isinstance(found, bool) else None

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
        ends = {_end(alias) for alias in table}
        for name in (name for name in names if _end(name) in ends):
            for prefix, own in _divided(name):
                source = next((prefix + first for first in table.get(own, ()) if prefix + first in names), None)
                if source is not None:
                    found.setdefault(name, source)
    return found


def tied_names(name: str) -> Iterator[str]:
    """List the names that a model may have for a parameter beside this one, where it is stored once for all of them."""
    for prefix, own in _divided(name):
        yield from (prefix + other for other in _partners().get(own, ()))


@cache
def _partners() -> Mapping[str, Mapping[str, None]]:
    """Return the other names of each tensor that is in a tie: its first, its second ones, and the first's others."""
    firsts = {(alias, first) for table in (ALWAYS, BY_CONFIG) for alias in table for first in table[alias]}
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for alias, first in sorted(firsts):
        found[alias][first] = None
        found[first][alias] = None
    others = {(alias, other) for alias, first in firsts for other, same in firsts if first == same and other != alias}
    for alias, other in sorted(others):
        found[alias][other] = None
    return found


def _end(name: str) -> str:
    """Return the last two parts of a name."""
    return ".".join(name.rsplit(".", 2)[-2:])


def _divided(name: str) -> Iterator[tuple[str, str]]:
    """Divide a name into what a larger model may have put before it and the rest, in all ways, none before it first."""
    parts = name.split(".")
    for count in range(len(parts)):
        yield "".join(f"{part}." for part in parts[:count]), ".".join(parts[count:])


def architecture_of(folder: Path) -> Architecture:
    """Read what a checkpoint's folder says of its architecture; raise InputError if its `config.json` is invalid."""
    return Architecture(read_config(folder / CONFIG) or {})


def read_config(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Read a configuration as `read_object` does; raise InputError too for one with a number that no model has."""
    config = read_object(path, limit)
    check_numbers(config, path)
    return config


def read_object(path: Path, limit: int) -> dict[str, Any] | None:
    """Read a JSON object of at most so many bytes; None where there is no file; raise InputError for anything else."""
    if not path.exists():
        return None
    check_link(path, path.parent)
    with refusing(f"{path}: not a configuration", "fetch it again"):
        config = parse_json(read_small(path, limit))
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a configuration, but {type(config).__name__}; fetch it again")
    return config
