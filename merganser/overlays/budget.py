"""Find the share of each spectrum that fits into a budget of bytes, from the parameters' shapes alone."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch

from merganser.checkpoints.tensors import NAMES_OF_DTYPES
from merganser.errors import InputError
from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.linalg.counts import count_of
from merganser.overlays.index import OverlayIndex, ParameterParts, file_size, form_of, stored_tensors
from merganser.overlays.parts import Dense, LowRank, Part
from merganser.overlays.thresholded import Thresholded, ThresholdedFactors, ThresholdedVectors

Adaptive = Literal["adaptive"]
STEP = 2**-12  # of densities: finer ones are the same bytes, but for some hundred
ROUNDED_UP = 8  # entries of a parameter by which a plan may be below what is written: the bits of a byte


class Fitting(NamedTuple):
    """How a method with a part per task is brought to so many bytes: the parameters that it is fitted by.

    `values`, given the layers and the share of the merged parameters' bytes that a task may take, returns theirs.
    Raises TooFewBytesError where none does.
    """

    parameters: tuple[str, ...]
    values: Callable[[LayerSource, float], dict[str, Any]]


class TooFewBytesError(InputError):
    """Not even the smallest parts of a method fit into the bytes that a task may take."""


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
THRESHOLDED_VECTORS = Coding(ThresholdedVectors, Thresholded, affordable=16)  # and scales of each vector's own


def plan_index(layers: LayerSource, coding: Coding, share: float, vectors: torch.dtype = torch.float32) -> OverlayIndex:
    """Lay out the file of a method that keeps this share of every spectrum, if all matrices have full rank.

    `vectors`: the dtype of the singular vectors. The written file cannot be larger.
    """
    return _planned(layers, coding, partial(count_of, share), vectors)


def _planned(layers: LayerSource, coding: Coding, kept: Callable[[int], int], vectors: torch.dtype) -> OverlayIndex:
    """Lay out a file likewise; `kept`: how many triples of a spectrum of so many."""
    rows, kinds = {}, layers.kinds
    for name, shape in layers.shapes.items():
        count = kept(min(shape)) if kinds[name] == "matrix" else 0
        dtype = NAMES_OF_DTYPES[vectors if coding.triples is LowRank and count else torch.float32]
        form = form_of(coding.triples if count else coding.whole, dtype, shape)
        rows[name] = ParameterParts(form, dict.fromkeys(layers.tasks, count))
    return OverlayIndex(layers.tasks, rows)


def rate_of(index: OverlayIndex, layers: LayerSource) -> float:
    """Return a file's bytes per task over the bytes of the parameters in float32."""
    return file_size(index) / len(index.tasks) / _float32_bytes(layers)


def largest_share(layers: LayerSource, coding: Coding, ratio: float) -> float:
    """Return the largest share, the same for all matrices, with which the file stays within `ratio` per task.

    The file's size includes its index. Raises TooFewBytesError if not even the smallest share fits.
    """
    kinds = layers.kinds
    matrices = {name: shape for name, shape in layers.shapes.items() if kinds[name] == "matrix"}
    spectra = set(map(min, matrices.values()))
    shares = sorted({count / rank for rank in spectra for count in range(rank + 1)} | {0.0}, reverse=True)
    plan = partial(plan_index, layers, coding, vectors=_stored(layers, matrices))
    for share in shares:
        if share <= coding.affordable * ratio and _fits(plan(share), layers, ratio):
            return share
    least = min(shares, key=lambda share: max(_bare_rate(plan(share), layers), share / coding.affordable))
    raise TooFewBytesError(
        f"ratio: {ratio:g} is too small: a task's parts and its share of the index take at least "
        f"{max(rate_of(plan(least), layers), least / coding.affordable):.4g} of the merged parameters' bytes; raise it"
    )


def largest_k(layers: LayerSource, ratio: float) -> dict[str, Any]:
    """Return the largest `k`, the triples kept of every matrix, with which a low-rank file stays within a ratio.

    Raises TooFewBytesError if not even one triple does.
    """
    most = max((min(shape) for name, shape in layers.shapes.items() if layers.kinds[name] == "matrix"), default=1)

    def rate(k: int) -> float:
        return rate_of(_planned(layers, LOW_RANK, partial(min, k), torch.float32), layers)

    k = bisect_right(range(1, most + 1), ratio, key=rate)
    if not k:
        raise TooFewBytesError(f"k: one triple of every matrix takes {rate(1):.4g} of the merged parameters' bytes")
    return {"k": k}


def largest_density(part: type[Part], layers: LayerSource, ratio: float) -> dict[str, Any]:
    """Return the largest density, a share of the whole vector, with which parts with a mask stay within a ratio.

    Wherever the entries are that it keeps. Raises TooFewBytesError if the masks alone take more.
    """
    sizes = {name: prod(shape) for name, shape in layers.shapes.items()}
    forms = {name: form_of(part, "F32", shape) for name, shape in layers.shapes.items()}

    def index(counts: Mapping[str, int]) -> OverlayIndex:
        return OverlayIndex(
            layers.tasks,
            {n: ParameterParts(forms[n], dict.fromkeys(layers.tasks, count)) for n, count in counts.items()},
        )

    longest = index(sizes)  # no count has more digits
    header = file_size(longest) - sum(spec.nbytes for spec in stored_tensors(longest).values())

    def rate(density: float) -> float:
        kept = {name: min(size, count_of(density, size) + ROUNDED_UP) for name, size in sizes.items()}
        stored = sum(spec.nbytes for spec in stored_tensors(index(kept)).values())
        return (header + stored) / len(layers.tasks) / _float32_bytes(layers)

    densities = [number * STEP for number in range(1, round(1 / STEP) + 1)]
    position = bisect_right(densities, ratio, key=rate)
    if not position:
        raise TooFewBytesError(f"density: masks alone take {rate(0):.4g} of the merged parameters' bytes")
    return {"density": densities[position - 1]}


ADAPTIVE = Fitting(("rank_fraction", "ratio"), lambda _, ratio: {"rank_fraction": "adaptive", "ratio": ratio})
BY_K = Fitting(("k",), largest_k)


def by_density(part: type[Part]) -> Fitting:
    """Return how a method with masks is fitted, whose parts are of this kind."""
    return Fitting(("density",), partial(largest_density, part))


def _fits(index: OverlayIndex, layers: LayerSource, ratio: float) -> bool:
    return _bare_rate(index, layers) <= ratio and rate_of(index, layers) <= ratio


def _bare_rate(index: OverlayIndex, layers: LayerSource) -> float:
    """Return the rate of a planned file without its index: a lower bound that is much faster to compute."""
    task = index.tasks[0]
    alone = OverlayIndex(
        (task,), {name: ParameterParts(row.form, {task: row.counts[task]}) for name, row in index.rows.items()}
    )
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
