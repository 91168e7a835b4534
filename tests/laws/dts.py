"""DTS's coding in numpy's float64: four groups of elements, each with one scale."""

from collections.abc import Sequence

import numpy as np

from tests.laws.references import Array, Given, counted, svd


def grouped(values: Array, thresholds: str = "medians", scaled: bool = True) -> Array:
    """Replace each element by its group's signed root mean square (equations 10 to 13, the signs put right).

    By signs there are two groups, and zeros are of the positive one; without scales each element is 1 or -1.
    """
    out = np.zeros_like(values)
    positive, negative = values > 0, values < 0
    if not scaled:
        return np.where(negative, -1.0, 1.0) * values.any()
    if thresholds == "signs":
        for group, sign in ((~negative, 1), (negative, -1)):
            out[group] = sign * np.sqrt(np.mean(values[group] ** 2)) if group.any() else 0
        return out
    large = positive & (values > np.median(values[positive])) if positive.any() else positive
    small = negative & (values > np.median(values[negative])) if negative.any() else negative
    for group, sign in ((large, 1), (~negative & ~large, 1), (small, -1), (negative & ~small, -1)):
        if group.any():
            out[group] = sign * np.sqrt(np.mean(values[group] ** 2))
    return out


def coded(
    layer: Given,
    rank_fraction: float,
    decompose: bool = True,
    thresholds: str = "medians",
    scaled: bool = True,
    groups: str = "tensor",
) -> Array:
    """Rebuild each task's delta (T, ...) from the thresholded vectors of its leading triples, or thresholded itself.

    A code hangs on a sign and on which side of a median an element falls, so this takes the vectors from a float64 SVD,
    oriented by the library's rule (the largest entry of the left one is positive). Elements of float32 vectors are on
    the same side unless they are within some 1e-7 of the median: what is compared must be generic, of no repeated
    singular values and with no two elements of a vector equal but for rounding, as random matrices are.
    """
    count = 0 if layer.kind == "vector" or not decompose else counted(rank_fraction, min(layer.deltas.shape[1:]))
    if count == 0:
        return np.stack([grouped(delta, thresholds, scaled) for delta in layer.deltas])
    return np.stack([_rebuilt(delta, count, thresholds, scaled, groups) for delta in layer.deltas])


def _rebuilt(delta: Array, count: int, thresholds: str, scaled: bool, groups: str) -> Array:
    u, s, vh = svd(delta)
    count = min(count, len(s))
    u, s, vh = u[:, :count], s[:count], vh[:count]
    signs = np.sign(np.take_along_axis(u, np.abs(u).argmax(0)[None], 0))
    sides = [(signs * u).T, signs.T * vh]
    if groups == "vector" and count:
        left, right = (np.stack([grouped(each, thresholds, scaled) for each in vectors]) for vectors in sides)
    else:
        left, right = (grouped(vectors, thresholds, scaled) for vectors in sides)
    return (left.T * s) @ right


def reference(
    layers: Sequence[Given],
    *,
    rank_fraction: float,
    decompose: bool,
    thresholds: str,
    groups: str,
    scaled: bool,
    **_: object,
) -> list[Array]:
    """Each task's thresholded triples, or its thresholded matrix; of dts_d the layers hold differences."""
    return [coded(layer, rank_fraction, decompose, thresholds, scaled, groups) for layer in layers]
