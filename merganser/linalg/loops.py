"""Compiled loops over the entries of one layer, used by `thresholds`, `elect_sign` and `disjoint_mean` on a CPU.

Legend: T tasks, C entries, processed W at a time. Sums are in float64, over the tasks in their order.
"""

from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

W = 512


def compiled(*arguments: str) -> Callable[[Callable], Callable]:
    """Compile for arguments of these types, F standing for float32 and float64, I for int16, int32 and int64."""
    dtypes = {"F": ("float32", "float64"), "I": ("int16", "int32", "int64")}
    letter = arguments[0][0]
    signatures = [f"({', '.join(arguments)})".replace(letter, dtype) for dtype in dtypes[letter]]

    def compile_(function: Callable) -> Callable:
        try:
            return numba.njit(signatures, nogil=True, error_model="numpy", cache=True)(function)
        except RuntimeError:  # numba finds no writable cache folder
            return numba.njit(signatures, nogil=True, error_model="numpy")(function)

    return compile_


@compiled("F[:, ::1]", "F[::1]", "int64", "F[::1]")
def elect(values: NDArray, levels: NDArray, draw: int, signs: NDArray) -> None:
    """Write the sign of each column's sum of the entries (T, C) whose magnitude is above their task's level (T)."""
    tasks, entries = values.shape
    sums, zero = np.empty(W), values.dtype.type(0)
    for start in range(0, entries, W):
        width = min(W, entries - start)
        sums[:] = 0
        for t in range(tasks):
            level, row = levels[t], values[t, start : start + width]
            for c in range(width):
                sums[c] += row[c] if abs(row[c]) > level else zero
        for c in range(width):
            signs[start + c] = 1 if sums[c] > 0 else -1 if sums[c] < 0 else draw


@compiled("F[:, ::1]", "F[::1]", "F[::1]", "F[::1]")
def agreeing_mean(values: NDArray, levels: NDArray, signs: NDArray, means: NDArray) -> None:
    """Write each column's mean of the entries (T, C) above their task's level (T) that have the column's sign (C)."""
    tasks, entries = values.shape
    sums, counts, zero = np.empty(W), np.empty(W, np.int32), values.dtype.type(0)
    for start in range(0, entries, W):
        width = min(W, entries - start)
        side = signs[start : start + width]
        sums[:] = 0
        counts[:] = 0
        for t in range(tasks):
            level, row = max(levels[t], zero), values[t, start : start + width]
            for c in range(width):
                agreeing = row[c] * side[c]
                sums[c] += agreeing if agreeing > level else zero
                counts[c] += agreeing > level
        for c in range(width):
            means[start + c] = sums[c] * side[c] / max(counts[c], 1)


@compiled("I[::1]", "int64", "int64", "int64", "int64", "int64[::1]")
def count(numbers: NDArray, mask: int, before: int, leading: int, following: int, counts: NDArray) -> None:
    """Histogram the patterns (C,), numbers & mask, that start with these leading bits, by the bits that come next.

    `before` bits come after the leading ones, `following` after those that are counted.
    """
    counted = len(counts) - 1
    for i in range(len(numbers)):
        pattern = numbers[i] & mask
        if pattern >> before == leading:
            counts[(pattern >> following) & counted] += 1


@compiled("I[::1]", "int64", "int64", "int64", "I[::1]")
def take(numbers: NDArray, mask: int, before: int, leading: int, taken: NDArray) -> int:
    """Write the patterns (C,) with these leading bits one after another; return how many there are."""
    size = 0
    for i in range(len(numbers)):
        pattern = numbers[i] & mask
        taken[size] = pattern  # overwritten by the next one unless it matches: faster than a branch
        size += pattern >> before == leading
    return size
