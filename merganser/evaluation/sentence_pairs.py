"""Two texts per example, in the columns `text` and `pair`, each with its own embedding.

The arrays of `text` have the network's input names; those of `pair` have the prefix `pair_`. Texts with the same tokens
are embedded once, so that their embeddings are equal. Legend: N examples, D features.
"""

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from merganser.evaluation.columns import RENAMED, check_column, check_complete
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import PAIR, TEXT, TextSettings, check_texts, encode_texts
from merganser.models import Network, TakesTexts, defined

PREFIX, FIRST, MASK = "pair_", "first", "attention_mask"


class PairSettings(TextSettings):
    """The most tokens each text may have, if the model is made for as many; longer ones are cut."""

    max_length: Annotated[int, Field(ge=1, le=2**17)] = 512


def check_pairs(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without columns `text` and `pair` of strings."""
    check_texts(splits, source)
    for split, rows in splits.items():
        check_column(rows, PAIR, f"{source}: split {split}", RENAMED)


def encode_pairs(rows: Any, network: Network, max_length: int) -> dict[str, Tensor]:
    """Tokenise both texts of every example; raise InputError if one is missing."""
    check_complete(rows, [TEXT, PAIR])
    both = dict[str, Tensor]()
    for prefix, column in (("", TEXT), (PREFIX, PAIR)):
        assert isinstance(network, TakesTexts)
        encoded = encode_texts(network, list(rows[column]), max_length)
        tokens = torch.cat(list(encoded.values()), dim=1).numpy()
        encoded[FIRST] = first_places(row.tobytes() for row in tokens)
        both |= {f"{prefix}{name}": values for name, values in encoded.items()}
    return both


def first_places(values: Iterable[Hashable]) -> Tensor:
    """Return the place of each value's first occurrence: (N,).

    >>> first_places(["a", "b", "a"]).tolist()
    [0, 1, 0]
    """
    known = dict[Hashable, int]()
    return torch.tensor([known.setdefault(value, place) for place, value in enumerate(values)])


def embed(network: Network, prepared: Prepared, batch_size: int, prefix: str = "") -> Tensor:
    """Return the unit embedding of each example's first text, or of its second one: (N, D) in float64 on the CPU.

    The longest texts run first. `prefix`: `pair_` for the second texts.
    """
    assert isinstance(network, TakesTexts)
    names = {f"{prefix}{name}": name for name in network.tokenizer.model_input_names}
    lengths, firsts = prepared.array(prefix + MASK).sum(dim=1), prepared.array(prefix + FIRST)
    order = sorted(set(firsts.tolist()), key=lambda place: (-int(lengths[place]), place))
    # `logits`, as those of a network whose inputs are routed: a merge may embed each text by a model of its own
    batches = prepared.batches(list(names), batch_size, order)
    outputs = [network.logits({names[name]: rows for name, rows in batch.items()}).double().cpu() for batch in batches]
    ranked = torch.tensor(order).argsort()[torch.searchsorted(torch.tensor(sorted(order)), firsts)]
    return normalize(defined(torch.cat(outputs))[ranked], dim=1)
