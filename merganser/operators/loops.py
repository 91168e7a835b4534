"""Compiled loops over the entries of one layer: what `elect_sign` and `disjoint_mean` run on a CPU.

Legend: T tasks, C entries, of which W are in work at a time. Sums are in float64, over the tasks in their order.
"""

from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

W = 512


def compiled(*arguments: str) -> Callable[[Callable], Callable]:
    """Compile for arguments of these types, F standing for float32 and float64."""
    signatures = [f"({', '.join(arguments)})".replace("F", dtype) for dtype in ("float32", "float64")]

    def compile_(function: Callable) -> Callable:
        try:
            return numba.njit(signatures, nogil=True, error_model="numpy", cache=True)(function)
        except RuntimeError:  # there is no folder to keep it in that can be written to
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
