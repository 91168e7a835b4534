"""Data sets with one text per example, in the column `text`, or two, the second in the column `pair`.

Stored texts are an array with one row per text: UTF-8, padded with zeros. Legend: N texts, W bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import KindSettings
from merganser.evaluation.columns import RENAMED, check_column, check_complete, type_of
from merganser.evaluation.prepared import Prepared
from merganser.models import Network, TakesTexts

Result = TypeVar("Result")


def pack(texts: Sequence[str]) -> Tensor:
    """Store texts as UTF-8 bytes (N, W), with W of the longest.

    >>> pack(["ab", "é"]).tolist()
    [[97, 98], [195, 169]]
    """
    rows = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    packed = np.zeros((len(rows), max(1, *map(len, rows))) if rows else (0, 1), dtype=np.uint8)
    for i, row in enumerate(rows):
        packed[i, : len(row)] = row
    return torch.from_numpy(packed)


def unpack(packed: Tensor) -> list[str]:
    """Read texts that `pack` stored.

    >>> unpack(pack(["ab", "", "é"]))
    ['ab', '', 'é']
    """
    return [row.tobytes().rstrip(b"\0").decode() for row in packed.numpy()]


TEXT, PAIR, LABEL = "text", "pair", "label"


class TextSettings(KindSettings):
    """The most tokens an example may have; longer ones are cut."""

    max_length: Annotated[int, Field(ge=1, le=2**17)] = 128


def check_texts(splits: Mapping[str, Any], source: Path) -> None:
    """Refuse a data set without a column `text` of strings."""
    for split, rows in splits.items():
        check_column(rows, TEXT, f"{source}: split {split}", RENAMED)
        for column in _texts_of(rows):
            kind = type_of(rows.features[column])
            if kind not in ("string", "large_string"):
                raise InputError(f"{source}: split {split}: the column {column!r} holds {kind}, not texts")


def encode_rows(rows: Any, network: Network, max_length: int) -> dict[str, Tensor]:
    """Tokenise every example: int32 arrays, one row per example; raise InputError for one without a text."""
    assert isinstance(network, TakesTexts)
    check_complete(rows, _texts_of(rows))
    columns = [list(rows[column]) for column in _texts_of(rows)]
    texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return encode_texts(network, texts, max_length)


def encode_texts(network: TakesTexts, texts: Sequence[Any], max_length: int) -> dict[str, Tensor]:
    """Tokenise texts, or pairs of texts: int32 arrays, one row each; raise InputError for one without tokens."""
    encoded = network.encode(texts, max_length)
    if not (filled := encoded["attention_mask"].any(dim=1)).all():
        empty = int((~filled).nonzero()[0])
        raise InputError(f"text {empty} has no tokens for the model's tokenizer: {texts[empty]!r}; leave it out")
    return {name: values.to(torch.int32) for name, values in encoded.items()}


def run_by_length(
    run: Callable[[Mapping[str, Tensor]], Iterable[Result]],
    prepared: Prepared,
    names: Sequence[str],
    batch_size: int,
    prompt: int | None = None,
) -> list[Result]:
    """Run N texts in batches of similar length, the longest first, to save padding; return N results.

    The results are in the texts' order. `prompt`: its number, if each text has several.
    """
    mask = prepared.array("attention_mask")
    lengths = (mask if prompt is None else mask[:, prompt]).sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    outcomes: list[Result] = []
    for batch in prepared.batches(names, batch_size, order.tolist()):
        outcomes.extend(run(batch if prompt is None else {name: rows[:, prompt] for name, rows in batch.items()}))
    return [outcomes[place] for place in order.argsort().tolist()]


def logits_of(network: Network, prepared: Prepared, batch_size: int) -> Tensor:
    """Run a loaded network on prepared texts: (N, C) in float32, on the CPU."""
    assert isinstance(network, TakesTexts)
    names: Sequence[str] = network.tokenizer.model_input_names
    return torch.stack(run_by_length(lambda batch: network.logits(batch).float().cpu(), prepared, names, batch_size))


def _texts_of(rows: Any) -> list[str]:
    return [TEXT, PAIR] if PAIR in rows.column_names else [TEXT]
