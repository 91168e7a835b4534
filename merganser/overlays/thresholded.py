"""Thresholded parts (DTS): two bits per element, its sign and whether it is large, and one scale per group.

The four groups of a tensor: positive and negative, each split at its own median. Zeros belong to the small positive
group. The scale of a group is its root mean square, which keeps the tensor's norm. For ablations there are two groups
instead, by the sign alone, or scales of 1, or each singular vector has groups and scales of its own. DTS's printed
equations 12 and 13 omit the minus and the mask of the negative groups; here they are -s and (1 - g).
"""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec
from merganser.inputs.layers import LayerDeltas, LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import oriented, rebuilt
from merganser.overlays.parts import Part, Parts, bytes_of, pack_bits, truncated, unpack_bits

LARGE, NEGATIVE = 1, 2  # the two bits of a code
SIGNS = (1, 1, -1, -1)  # of the scales, by code
WIDTH = 2  # bits of a code
Thresholds = Literal["medians", "signs"]
Groups = Literal["tensor", "vector"]  # of all singular vectors of a side together, or of each by itself
ROUNDING = 4  # times eps: smaller entries of a unit vector are rounding errors


@dataclass(frozen=True)
class Thresholded(Part):
    """A delta stored as packed codes and their signed scales."""

    kind: ClassVar[str] = "thresholded"
    codes: Tensor  # uint8, four codes per byte
    scales: Tensor  # (4,), by code

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        return {"codes": Spec("U8", (bytes_of(dims[0], WIDTH),)), "scales": Spec(dtype, (len(SIGNS),))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        return decode(self.codes, self.scales, shape).float()


@dataclass(frozen=True)
class ThresholdedFactors(Part):
    """A delta stored as U diag(S) Vh with U and Vh thresholded and the K singular values unchanged."""

    kind: ClassVar[str] = "thresholded_factors"
    factored: ClassVar[bool] = True
    u_codes: Tensor
    u_scales: Tensor
    s: Tensor  # (K,)
    v_codes: Tensor
    v_scales: Tensor

    @property
    def count(self) -> int:
        return len(self.s)

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        rows, columns = dims
        scales = Spec(dtype, (len(SIGNS),))
        return {
            "u_codes": Spec("U8", (bytes_of(rows * count, WIDTH),)),
            "u_scales": scales,
            "s": Spec(dtype, (count,)),
            "v_codes": Spec("U8", (bytes_of(count * columns, WIDTH),)),
            "v_scales": scales,
        }

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Multiply the thresholded factors out, in float64: the result does not depend on the number of threads."""
        rank = len(self.s)
        u = decode(self.u_codes, self.u_scales.double(), (shape[0], rank))
        vh = decode(self.v_codes, self.v_scales.double(), (rank, prod(shape[1:])))
        return ((u * self.s.double()) @ vh).float().reshape(shape)


@dataclass(frozen=True)
class ThresholdedVectors(ThresholdedFactors):
    """As ThresholdedFactors, with groups and scales (K, 4) of each vector's own; the codes of U are those of U^T."""

    kind: ClassVar[str] = "thresholded_vectors"

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        scales = Spec(dtype, (count, len(SIGNS)))
        return ThresholdedFactors.specs(dims, count, dtype) | {"u_scales": scales, "v_scales": scales}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        u = decode_each(self.u_codes, self.u_scales.double(), shape[0]).mT
        vh = decode_each(self.v_codes, self.v_scales.double(), prod(shape[1:]))
        return ((u * self.s.double()) @ vh).float().reshape(shape)


def thresholded_parts(
    layer: LayerFactors,
    count: int,
    thresholds: Thresholds = "medians",
    scaled: bool = True,
    groups: Groups = "tensor",
) -> Parts:
    """Threshold `count` singular triples of each task; if that is 0, the delta itself, like a vector's.

    A task that does not change the matrix stores nothing.
    """
    spectra = {task: factors.s for task, factors in zip(layer.tasks, layer.factors, strict=True)}

    def part(task: str, kept: Factors) -> Part:
        if count == 0:
            return threshold(rebuilt(kept), thresholds, scaled, _rounding(kept, spectra[task], layer.stored))
        return threshold_factors(kept, thresholds, scaled, groups)

    return Parts({task: part(task, kept) for task, kept in truncated(layer, count).items()})


def _rounding(kept: Factors, whole: Tensor, stored: torch.dtype) -> Tensor:
    """Return how far the entries (M, N) of rebuilt factors, of a whole spectrum (R,), may be from the delta's own.

    So that entries that did not change count as zeros, and equal ones as equal.
    """
    u, s, vh = (each.double() for each in kept)
    eps = max(torch.finfo(stored).eps, torch.finfo(kept.s.dtype).eps * len(s) ** 0.5)
    left_out = whole[len(s) :].double().square().sum() / (len(u) * vh.shape[1])
    return ROUNDING * (eps * ((u * s).square() @ vh.square()).sqrt() + left_out.sqrt()).to(kept.s.dtype)


def thresholded_vectors(
    layer: LayerDeltas, *, thresholds: Thresholds = "medians", scaled: bool = True, **_: Any
) -> Parts:
    """Threshold each task's delta directly; a zero delta stores nothing."""
    pairs = zip(layer.tasks, layer.deltas, strict=True)
    return Parts({task: threshold(delta, thresholds, scaled) for task, delta in pairs if delta.any()})


def threshold(
    values: Tensor, thresholds: Thresholds = "medians", scaled: bool = True, rounding: Tensor | float = 0.0
) -> Thresholded:
    """Compute each element's code, and for each code the signed root mean square of its elements, or 1 with the sign.

    `thresholds`: medians give four groups, signs alone two, all of which count as small. `rounding`: up to which an
    element counts as zero, or as equal to a median.
    """
    codes, scales = element_codes(values, thresholds, scaled, rounding)
    return Thresholded(pack_bits(codes, WIDTH), scales)


def element_codes(
    values: Tensor, thresholds: Thresholds, scaled: bool, rounding: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return each element's code, and the signed scale of each code."""
    by_sign = thresholds == "signs"
    codes = (NEGATIVE * (values < -rounding)).to(torch.uint8) if by_sign else codes_of(values, rounding)
    if scaled:
        scales = torch.stack([_root_mean_square(values[codes == code]) for code in range(len(SIGNS))])
    else:
        scales = torch.ones(len(SIGNS), dtype=torch.float64, device=values.device)
    signs = torch.tensor(SIGNS, device=values.device)
    return codes, (scales * signs).to(values.dtype)


def _each_coded(rows: Tensor, thresholds: Thresholds, scaled: bool) -> tuple[Tensor, Tensor]:
    """Return the codes (K, n) of vectors and their scales (K, 4), of each by itself."""
    codes, scales = zip(*(element_codes(row, thresholds, scaled) for row in rows), strict=True)
    return torch.stack(codes), torch.stack(scales)


def threshold_factors(
    factors: Factors, thresholds: Thresholds = "medians", scaled: bool = True, groups: Groups = "tensor"
) -> ThresholdedFactors:
    """Threshold U and Vh, each as one tensor, or each of their vectors by itself.

    An entry's sign decides its group, so the triples are oriented first. Rounding errors in a unit vector, as in the
    frozen rows of a layer, count as 0.
    """
    u, s, vh = oriented(factors)
    noise = ROUNDING * torch.finfo(u.dtype).eps
    left, right = (torch.where(each.abs() > noise, each, 0) for each in (u, vh))
    sides: list[Tensor] = []
    for side in (left, right) if groups == "tensor" else (left.mT, right):
        codes, scales = (
            element_codes(side, thresholds, scaled) if groups == "tensor" else _each_coded(side, thresholds, scaled)
        )
        sides += [pack_bits(codes, WIDTH), scales]
    u_codes, u_scales, v_codes, v_scales = sides
    kind = ThresholdedFactors if groups == "tensor" else ThresholdedVectors
    return kind(u_codes, u_scales, s.contiguous(), v_codes, v_scales)


def codes_of(values: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
    """Return each element's code (equations 10 and 11); large is > the positives' median or <= the negatives'."""
    positive, negative, exact = values > rounding, values < -rounding, values - rounding
    large = positive & (exact > values[positive].median()) | negative & (exact <= values[negative].median())
    return (LARGE * large + NEGATIVE * negative).to(torch.uint8)


def decode(packed: Tensor, scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of this shape that packed codes and scales encode."""
    return scales[unpack_bits(packed, prod(shape), WIDTH).long()].reshape(shape)


def decode_each(packed: Tensor, scales: Tensor, size: int) -> Tensor:
    """Return the vectors (K, n) of so many elements that packed codes and scales (K, 4) encode."""
    count = len(scales)
    return scales.gather(1, unpack_bits(packed, count * size, WIDTH).long().view(count, size))


def _root_mean_square(values: Tensor) -> Tensor:
    return (values.double().square().sum() / max(values.numel(), 1)).sqrt()
