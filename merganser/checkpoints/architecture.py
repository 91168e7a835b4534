"""The parts of a transformers configuration that concern a checkpoint's tensors: ties, buffers, in x out linear maps.

Names alone do not tell: `attn.c_proj.weight` is out x in for open_clip, and in x out for GPT-2. Numbers in a
configuration are bounded, since a model built from a few digits may take all memory.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.known_models import ALWAYS, BY_CONFIG, configured
from merganser.checkpoints.tensors import Spec, StoredCheckpoint
from merganser.errors import InputError, refusing
from merganser.limits import check_link, parse_json, read_small

NESTING = 50
DIGITS = 20  # of a value that is shown
# Settings of the training, frequencies and budgets: nothing is built from them.
FREE = re.compile(
    r"(^|_)(seed|theta|total|steps?|samples|date|time|timestamp|flops|params|parameters|bytes|max_length"
    r"|pixels|longest_edge)($|_)"
)
# Kinds of numbers by their names, the first that fits: what is repeated, what is counted, what pictures measure.
LIMITS = (
    (re.compile(r"(^|_)(layers?|depths?|blocks|stages|levels|iterations|repeats|num_hidden_groups)$"), 1_000),
    (re.compile(r"(^|_)(heads?|experts|codebooks|beams|return_sequences)$"), 20_000),
    (re.compile(r"(^|_)(image_size|patch_size|crop_size|height|channels)$|^size$"), 2**15),
    (re.compile(r"(^|_)(num_labels|num_classes)$"), 2**17),
    (re.compile(r""), 2**25),
)
# What is a whole number in all configurations that have it, or a list of them.
WHOLE = re.compile(
    r"num_(hidden_|encoder_|decoder_)?layers|num_attention_heads|num_key_value_heads|num_labels|vocab_size|hidden_size"
    r"|intermediate_size|max_position_embeddings|n_layers?|n_heads?|n_embd|n_positions|d_model|d_ff|num_(local_)?experts"
    r"|context_length|embed_dim"
)


def check_numbers(content: Any, path: Path) -> None:
    """Refuse a configuration with an impossible number, by its name, or one that is nested too deeply."""
    for place, value in _leaves(content, path):
        name = place.rpartition(".")[2]
        if WHOLE.fullmatch(name) and value is not None and not _is_count(value):
            raise InputError(f"{path}: {place} is {_shown(value)}, and must be a whole number; fetch the file again")
        limit = next(limit for pattern, limit in LIMITS if pattern.search(name))
        if (type(value) is int or WHOLE.fullmatch(name)) and abs(value or 0) > limit and not FREE.search(name):
            raise InputError(f"{path}: {place} is {_shown(value)}, and no model has more than {limit:,}")


def _is_count(value: Any) -> bool:
    return (type(value) is int or (isinstance(value, float) and value.is_integer())) and value >= 0


def _leaves(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each value with its place; the items of a list have the list's place."""
    todo = [("", content, 0)]
    while todo:
        place, value, depth = todo.pop()
        if depth > NESTING:
            raise InputError(f"{path}: nested more than {NESTING} deep; fetch the file again")
        if isinstance(value, dict):
            todo += [(f"{place}.{key}" if place else str(key), inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            todo += [(place, inner, depth + 1) for inner in value]
        else:
            yield place, value


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 3 * DIGITS:  # to write a long number takes long
        return f"a number of {value.bit_length()} bits"
    return repr(value)[: DIGITS + 2]


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


def model_type_of(config: Mapping[str, Any]) -> str | None:
    """Return transformers' model type, also of timm's models, whose configurations lack it."""
    named = config.get("model_type", "timm_wrapper" if "pretrained_cfg" in config else None)
    return named if isinstance(named, str) else None


@dataclass(frozen=True)
class Architecture:
    """The architecture in a checkpoint's `config.json`; empty for a checkpoint without one, such as open_clip's."""

    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str | None:
        """Return transformers' name of the architecture."""
        return model_type_of(self.config)

    @property
    def says_tied(self) -> bool | None:
        """Return whether the configuration ties the output embedding to the input's; None if it does not say."""
        said = self.config.get(TIED)
        return said if isinstance(said, bool) else None

    @cached_property
    def tied(self) -> bool | None:
        """Return whether transformers ties the output embedding to the input's, by default too; None: unknown."""
        if self.says_tied is not None:
            return self.says_tied
        made, text = configured(self.config), self.config.get("text_config")
        flag = getattr(made, TIED, None) if made else text.get(TIED) if isinstance(text, dict) else None
        return flag if isinstance(flag, bool) else None

    @cached_property
    def in_by_out(self) -> list[re.Pattern[str]]:
        """Return the names of layers stored as in x out, by the types of the model and its parts (a decoder)."""
        parts = (model_type_of(part) for part in self.config.values() if isinstance(part, dict))
        return [IN_BY_OUT[named] for named in (self.model_type, *parts) if named and named in IN_BY_OUT]

    def is_in_by_out(self, name: str, shape: Collection[int]) -> bool:
        """Tell whether a linear map is stored as in x out."""
        return len(shape) == 2 and any(pattern.fullmatch(name) for pattern in self.in_by_out)


def is_buffer(name: str, spec: Spec) -> bool:
    """Tell whether a tensor is a constant that older versions of transformers stored."""
    return any(pattern.fullmatch(name) and len(spec.shape) >= least for pattern, least in BUFFERS)


def known_ties(names: Collection[str], tied: bool | None = None) -> dict[str, str]:
    """Return the names that may share another one's tensor by transformers, and that other one.

    `tied`: the configuration's value for the output embedding.
    """
    ties: dict[str, str] = {}
    for table in (ALWAYS,) if tied is False else (ALWAYS, BY_CONFIG):
        ends = {_end(alias) for alias in table}
        for name in (name for name in names if _end(name) in ends):
            for prefix, own in _divided(name):
                source = next((prefix + first for first in table.get(own, ()) if prefix + first in names), None)
                if source is not None:
                    ties.setdefault(name, source)
    return ties


def tied_names(name: str) -> Iterator[str]:
    """List a parameter's other names in models that store it once for all of them."""
    for prefix, own in _divided(name):
        yield from (prefix + other for other in _partners().get(own, ()))


@cache
def _partners() -> Mapping[str, Mapping[str, None]]:
    """Return the other names of each tied tensor: for a second name the first, for the first the others."""
    firsts = {(alias, first) for table in (ALWAYS, BY_CONFIG) for alias in table for first in table[alias]}
    partners: dict[str, dict[str, None]] = defaultdict(dict)
    for alias, first in sorted(firsts):
        partners[alias][first] = None
        partners[first][alias] = None
    others = {(alias, other) for alias, first in firsts for other, same in firsts if first == same and other != alias}
    for alias, other in sorted(others):
        partners[alias][other] = None
    return partners


def _end(name: str) -> str:
    return ".".join(name.rsplit(".", 2)[-2:])


def _divided(name: str) -> Iterator[tuple[str, str]]:
    """Split a name into a prefix that a larger model may have added and the rest, in all ways, the empty one first."""
    parts = name.split(".")
    for count in range(len(parts)):
        yield "".join(f"{part}." for part in parts[:count]), ".".join(parts[count:])


def architecture_of(folder: Path) -> Architecture:
    """Read a checkpoint's architecture from its folder; raise InputError if its `config.json` is invalid."""
    return Architecture(read_config(folder / CONFIG) or {})


def read_config(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Read a configuration as `read_object` does; also raise InputError for an impossible number."""
    config = read_object(path, limit)
    check_numbers(config, path)
    return config


def read_object(path: Path, limit: int) -> dict[str, Any] | None:
    """Read a JSON object of at most so many bytes; None if the file is missing; raise InputError for anything else."""
    if not path.exists():
        return None
    check_link(path, path.parent)
    with refusing(f"{path}: not a configuration", "fetch it again"):
        config = parse_json(read_small(path, limit))
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a configuration, but {type(config).__name__}; fetch it again")
    return config


PIECE = 2**20  # values compared at a time: most tensors that differ do so in the first


def surplus_of(checkpoint: StoredCheckpoint, architecture: Architecture) -> dict[str, str | None]:
    """List tensors that are no parameters of their own, with the parameter that a second name stands for.

    A known second name counts only if its values equal the first one's, bit for bit, and if neither the configuration
    nor, without one, its class says that they are untied. Two names of torch weights are one if they share memory.
    """
    if architecture.model_type is None:
        return {}
    aliases = _second_names(checkpoint, architecture.says_tied)
    if aliases and architecture.tied is False:
        aliases = _second_names(checkpoint, tied=False)
    names = () if architecture.model_type in STORED_TODAY else checkpoint.names
    return aliases | {name: None for name in names if is_buffer(name, checkpoint.spec(name))}


def _second_names(checkpoint: StoredCheckpoint, tied: bool | None) -> dict[str, str | None]:
    known = known_ties(frozenset(checkpoint.names), tied)
    sources = known if tied is False else _shared(checkpoint, set(known.values())) | known
    return {alias: source for alias, source in sources.items() if are_equal(checkpoint, alias, source)}


def are_equal(checkpoint: StoredCheckpoint, first: str, second: str) -> bool:
    """Tell whether two tensors of a checkpoint are equal, bit for bit; it stops at the first difference."""
    if checkpoint.spec(first) != checkpoint.spec(second):
        return False
    count = torch.Size(checkpoint.spec(first).shape).numel()
    pieces = range(0, count, PIECE)
    return all(
        torch.equal(_bits(checkpoint, first, start, count), _bits(checkpoint, second, start, count)) for start in pieces
    )


def _bits(checkpoint: StoredCheckpoint, name: str, start: int, count: int) -> Tensor:
    size = min(PIECE, count - start)
    return checkpoint.read_piece(name, start, (size,)).reshape(-1).view(torch.uint8)


def _shared(checkpoint: StoredCheckpoint, kept: set[str]) -> dict[str, str]:
    """List names of torch weights that share memory with another one, and that other one."""
    first: dict[object, str] = {}
    tied = {}
    for name in sorted(checkpoint.names, key=lambda name: (name not in kept, name)):
        memory = checkpoint.memory(name)
        if memory is not None and first.setdefault(memory, name) != name and name not in kept:
            tied[name] = first[memory]
    return tied
