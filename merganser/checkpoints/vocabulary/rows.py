"""The rows of a model's embeddings and heads, by token, and in another order.

A *table* is a parameter with a row for each token: an embedding, a language model's head, or that head's biases.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.kinds import FLOATS
from merganser.checkpoints.tensors import Spec

Key = str | int  # of a row: its token, or its number where it is padding, beyond the tokenizer's
ABSENT = -1
PIECE = 2**14  # rows that are moved at a time
HEADS = (
    *("*lm_head*", "*embed_out.*", "*predictions.decoder.*", "*vocab_projector.*", "*generator_lm_head.*"),
    *("*lm_loss.*", "*pred_layer.proj.*"),
)
TABLES = {
    2: ("*embed*", "*wte.weight", "*shared.weight", "*final_logits_bias", *HEADS),  # by the number of dimensions
    1: ("*predictions.bias", *HEADS),
}
OTHERS = ("*position*", "*token_type*", "*wpe.*", "*_norm*", "*layernorm*")


def rows_in(config: Mapping[str, Any]) -> int | None:
    """Return the number of rows of a model's tables, by its configuration or by that of its text part."""
    inner = [config.get("text_config"), *config.values()]
    said = (part.get("vocab_size") for part in (config, *inner) if isinstance(part, dict))
    return next((number for number in said if isinstance(number, int)), None)


def axis_of(name: str, spec: Spec, rows: int) -> int | None:
    """Return the dimension of a parameter with a row for each token; None if it is no table.

    >>> axis_of("model.embed_tokens.weight", Spec("F32", (40, 16)), 40), axis_of("norm.weight", Spec("F32", (16,)), 40)
    (0, None)
    >>> axis_of("final_logits_bias", Spec("F32", (1, 40)), 40)
    1
    """
    lower = name.lower()
    if spec.dtype not in FLOATS or rows not in spec.shape or any(fnmatchcase(lower, each) for each in OTHERS):
        return None
    is_table = any(fnmatchcase(lower, pattern) for pattern in TABLES.get(len(spec.shape), ()))
    return spec.shape.index(rows) if is_table else None


def keys_of(vocabulary: Mapping[str, int], rows: int) -> list[Key]:
    """Return each row's token; a row without one, as those beyond the tokenizer's, has its number.

    >>> keys_of({"a": 0, "b": 2, "beyond": 9}, 4)
    ['a', 1, 'b', 3]
    """
    keys: list[Key] = list(range(rows))
    for token, number in vocabulary.items():
        if number < rows:
            keys[number] = token
    return keys


def row_numbers(own: Sequence[Key], wanted: Sequence[Key], without: Collection[Key] = ()) -> Tensor:
    """Return the number of a model's own row for each wanted one; `ABSENT` if there is none, or it is excluded.

    >>> row_numbers(["a", "b", 2], ["b", "c", 2], without=["a"]).tolist()
    [1, -1, 2]
    """
    rows = {key: row for row, key in enumerate(own) if key not in without}
    return torch.tensor([rows.get(key, ABSENT) for key in wanted], dtype=torch.int64)


def arranged(table: Tensor, rows: Tensor, absent: Tensor, axis: int = 0) -> Tensor:
    """Reorder a table's rows; missing ones are taken from `absent`, which has that order.

    `axis`: the dimension of the rows. The result has the dtype that holds both.

    >>> arranged(torch.tensor([1.0, 2.0]), torch.tensor([1, ABSENT, 0]), torch.tensor([7.0, 8.0, 9.0])).tolist()
    [2.0, 8.0, 1.0]
    """
    dtype, own = torch.promote_types(table.dtype, absent.dtype), table.movedim(axis, 0)
    result = absent.movedim(axis, 0).to(dtype, copy=True)
    for piece in (rows != ABSENT).nonzero().flatten().split(PIECE):
        result[piece] = own[rows[piece]].to(dtype)
    return result.movedim(0, axis).contiguous()
