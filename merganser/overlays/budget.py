"""Find the share of each spectrum that fits into a budget of bytes, from the parameters' shapes alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import torch

from merganser.checkpoints.tensors import NAMES_OF_DTYPES
from merganser.errors import InputError
from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.linalg.counts import count_of
from merganser.overlays.index import Index, Row, file_size, form_of, stored_tensors
from merganser.overlays.parts import Dense, LowRank, Part
from merganser.overlays.thresholded import Thresholded, ThresholdedFactors

Adaptive = Literal["adaptive"]


@dataclass(frozen=True)
class Coding:
    """How a method stores truncated matrices, and how everything else."""

    triples: type[Part]
    whole: type[Part]
    affordable: float  # share of the spectrum kept <= affordable * stored bytes / float32 bytes, for any matrix

    def share_needed(self, tasks: int, *, rank_fraction: float | Adaptive, ratio: float, **_: Any) -> float:
        """Return an upper bound of the share of each spectrum that is kept."""
        return min(1.0, self.affordable * ratio) if rank_fraction == "adaptive" else rank_fraction

    def share(self, layers: LayerSource, rank_fraction: float | Adaptive, ratio: float) -> float:
        """Return the share of each spectrum that is kept: as given, or the largest that the ratio allows."""
        if rank_fraction != "adaptive":
            return rank_fraction
        return largest_share(layers, self, ratio)


LOW_RANK = Coding(LowRank, Dense, affordable=2)  # in half precision, 2 K (M + N) bytes are at least 2 M N K / R
THRESHOLDED = Coding(ThresholdedFactors, Thresholded, affordable=16)  # two bits instead of 32


def planned(layers: LayerSource, coding: Coding, share: float, vectors: torch.dtype = torch.float32) -> Index:
    """Lay out the file of a method that keeps this share of every spectrum, if all matrices have full rank.

    `vectors`: the dtype of the singular vectors. The written file cannot be larger.
    """
    rows, kinds = {}, layers.kinds
    for name, shape in layers.shapes.items():
        count = count_of(share, min(shape)) if kinds[name] == "matrix" else 0
        dtype = NAMES_OF_DTYPES[vectors if coding.triples is LowRank and count else torch.float32]
        form = form_of(coding.triples if count else coding.whole, dtype, shape)
        rows[name] = Row(form, dict.fromkeys(layers.tasks, count))
    return Index(layers.tasks, rows)


def rate_of(index: Index, layers: LayerSource) -> float:
    """Return a file's bytes per task over the bytes of the parameters in float32."""
    return file_size(index) / len(index.tasks) / _float32_bytes(layers)


def largest_share(layers: LayerSource, coding: Coding, ratio: float) -> float:
    """Return the largest share, the same for all matrices, with which the file stays within `ratio` per task.

    The file's size includes its index. Raises InputError if not even the smallest share fits.
    """
    kinds = layers.kinds
    matrices = {name: shape for name, shape in layers.shapes.items() if kinds[name] == "matrix"}
    spectra = set(map(min, matrices.values()))
    shares = sorted({count / rank for rank in spectra for count in range(rank + 1)} | {0.0}, reverse=True)
    plan = partial(planned, layers, coding, vectors=_stored(layers, matrices))
    for share in shares:
        if share <= coding.affordable * ratio and _fits(plan(share), layers, ratio):
            return share
    least = min(shares, key=lambda share: max(_bare_rate(plan(share), layers), share / coding.affordable))
    raise InputError(
        f"ratio: {ratio:g} is too small: a task's parts and its share of the index take at least "
        f"{max(rate_of(plan(least), layers), least / coding.affordable):.4g} of the merged parameters' bytes; raise it"
    )


def _fits(index: Index, layers: LayerSource, ratio: float) -> bool:
    return _bare_rate(index, layers) <= ratio and rate_of(index, layers) <= ratio


def _bare_rate(index: Index, layers: LayerSource) -> float:
    """Return the rate of a planned file without its index: a lower bound that is much faster to compute."""
    task = index.tasks[0]
    alone = Index((task,), {name: Row(row.form, {task: row.counts[task]}) for name, row in index.rows.items()})
    return sum(spec.nbytes for spec in stored_tensors(alone).values()) / _float32_bytes(layers)


def _float32_bytes(layers: LayerSource) -> int:
    return 4 * sum(map(prod, layers.shapes.values()))


def _stored(layers: LayerSource, matrices: Mapping[str, tuple[int, ...]]) -> torch.dtype:
    """Return the dtype of the stored singular vectors, from the smallest matrix: it is the fastest to read."""
    if not matrices:
        return torch.float32
    layer = layers.layer(min(matrices, key=lambda name: prod(matrices[name])))
    assert isinstance(layer, LayerFactors)
    return layer.stored
