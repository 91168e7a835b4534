"""Texts as an array of one row each, for what is kept in arrays: UTF-8, zeros behind. Legend: N texts, W bytes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pack(texts: Sequence[str]) -> Tensor:
    """Write texts as bytes (N, W), W that of the longest.

    >>> pack(["ab", "é"]).tolist()
    [[97, 98], [195, 169]]
    """
    rows = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    packed = np.zeros((len(rows), max(1, *map(len, rows))) if rows else (0, 1), dtype=np.uint8)
    for i, row in enumerate(rows):
        packed[i, : len(row)] = row
    return torch.from_numpy(packed)


def unpack(packed: Tensor) -> list[str]:
    """Read texts that were written as bytes.

    >>> unpack(pack(["ab", "", "é"]))
    ['ab', '', 'é']
    """
    return [row.tobytes().rstrip(b"\0").decode() for row in packed.numpy()]
