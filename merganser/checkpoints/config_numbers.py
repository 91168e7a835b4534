"""Numbers in the configurations that come with a checkpoint, bounded before anything is built from them.

A number of layers, classes or positions costs its writer a few digits, and building the model costs time and memory.
The limits lie beyond the models that are published. How the numbers fit the checkpoint is seen when the model is built.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from merganser.errors import InputError

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
    """Refuse a configuration with a number that no model has, by its name, or one that is nested too deeply."""
    for place, value in _values(content, path):
        name = place.rpartition(".")[2]
        if WHOLE.fullmatch(name) and value is not None and not _is_count(value):
            raise InputError(f"{path}: {place} is {_shown(value)}, and must be a whole number; fetch the file again")
        limit = next(limit for pattern, limit in LIMITS if pattern.search(name))
        if (type(value) is int or WHOLE.fullmatch(name)) and abs(value or 0) > limit and not FREE.search(name):
            raise InputError(f"{path}: {place} is {_shown(value)}, and no model has more than {limit:,}")


def _is_count(value: Any) -> bool:
    return (type(value) is int or (isinstance(value, float) and value.is_integer())) and value >= 0


def _values(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Give each value with its place; those of a list have that of the list."""
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
