"""Queries with one right passage each: the rank of the passage among all passages of the split.

Passages are ranked by the cosine of their embedding and the query's. Other right passages of a query are left out, and
a passage as near as the right one ranks before it. Legend: N examples, P distinct passages.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.examples import Results
from merganser.evaluation.kinds.regression import classes
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.sentence_pairs import PREFIX, PairSettings, check_pairs, embed, encode_pairs, first_places
from merganser.evaluation.texts import LABEL, PAIR, TEXT
from merganser.models import EncodesSentences, Network, TakesTexts

METRICS = ("recall_at_1", "recall_at_10", "mrr_at_10")
NEEDS = (TakesTexts, EncodesSentences)
PIPELINE = "sentence-similarity"  # of the families that score it
TOKENS = 256
QUERY, PASSAGE = "query", "passage"  # the first example of the same text
TIE = 1e-12  # cosines that differ by less are equal: products in float64 differ by more than rounding
NUMBERS = 2**24  # cosines in memory at once

Settings = PairSettings

__all__ = ["METRICS", "NEEDS", "PIPELINE", "TOKENS", "Settings", "classes"]


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without pairs of texts, or with a `label`, by which not every pair need be right."""
    check_pairs(splits, source)
    for split, rows in splits.items():
        if LABEL in rows.column_names:
            reason = f"{source}: split {split} has a column {LABEL!r}, and every pair of this kind is right"
            raise InputError(f"{reason}; leave out wrong pairs, and rename it: data.columns: {{other: {LABEL}}}")


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (TEXT, PAIR)


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield the tokens of each example's texts, and which examples share a query or a passage."""
    alike = {QUERY: first_places(rows[TEXT]), PASSAGE: first_places(rows[PAIR])}
    yield encode_pairs(rows, network, settings.max_length) | alike


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Score each example by the rank of its passage."""
    queries, passages = (embed(network, prepared, batch_size, prefix) for prefix in ("", PREFIX))
    right = prepared.array(PASSAGE)
    ranks = ranks_of(queries, passages, prepared.array(QUERY), right)
    return Results(scores_of(metric, ranks), label=right.double().numpy())


def ranks_of(queries: Tensor, passages: Tensor, query: Tensor, passage: Tensor) -> NDArray[np.int64]:
    """Return the rank (N,), from 1, of each passage among all distinct ones but the query's other right ones.

    `queries`, `passages`: unit embeddings (N, D); `query`, `passage`: the first example of the same text (N,).

    >>> texts = torch.eye(2, dtype=torch.float64)
    >>> ranks_of(texts, texts, torch.tensor([0, 1]), torch.tensor([0, 1])).tolist()
    [1, 1]
    """
    distinct, column = passage.unique(return_inverse=True)
    candidates, right = passages[distinct].T, defaultdict[int, list[int]](list)
    for first, place in zip(query.tolist(), column.tolist(), strict=True):
        right[first].append(place)
    ranks = []
    for rows in torch.arange(len(query)).split(max(1, NUMBERS // len(distinct))):
        cosines = queries[rows] @ candidates
        ahead = cosines > cosines.gather(1, column[rows, None]) - TIE
        for row, first in enumerate(query[rows].tolist()):
            ahead[row, right[first]] = False
        ranks.append(1 + ahead.sum(dim=1))
    return torch.cat(ranks).numpy()


def scores_of(metric: str, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each example's score from its passage's rank.

    >>> [scores_of(metric, np.array([1, 4, 11])).tolist() for metric in METRICS]
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.25, 0.0]]
    """
    within = ranks <= (1 if metric == "recall_at_1" else 10)
    return np.where(within, 1 / ranks if metric == "mrr_at_10" else 1.0, 0.0)
