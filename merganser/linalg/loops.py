"""Loops over a layer's entries on a CPU, compiled by Numba: one pass over memory, without Python's lock.

Torch takes a pass for each operation, and between any two of them the threads wait for that lock. Sums are in float64,
over the tasks in their order; nothing is reordered, so that the bits are the same on every processor. They are compiled
when this module is first imported, which takes some seconds, and kept beside it. Values are in float32 or float64.

Legend: T tasks, C entries; W entries are in work at a time, and what is known of them stays in the fastest cache.
"""

from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

W = 512


def compiled(*arguments: str) -> Callable[[Callable], Callable]:
    """Compile for arguments of these types, F and I standing for a floating-point one and an integer of its size."""
    signatures = [
        f"({', '.join(arguments)})".replace("F", floating).replace("I", integer)
        for floating, integer in (("float32", "int32"), ("float64", "int64"))
    ]

    def compile_(function: Callable) -> Callable:
        try:
            return numba.njit(signatures, nogil=True, error_model="numpy", cache=True)(function)
        except RuntimeError:  # there is no folder to keep it in that can be written to
            return numba.njit(signatures, nogil=True, error_model="numpy")(function)

    return compile_


@compiled("I[:, ::1]", "I[::1]", "I[::1]", "int64[:, ::1]", "int64[::1]", "int64")
def add_counts(patterns: NDArray, lows: NDArray, highs: NDArray, counts: NDArray, above: NDArray, shift: int) -> None:
    """Add how many patterns (T, C) are above their task's highest, and how many are from its lowest to that.

    The latter by their distance from the lowest without its last `shift` bits. `counts`: (T, bins), `above`: (T).
    """
    tasks, entries = patterns.shape
    for t in range(tasks):
        low, high = lows[t], highs[t]
        for c in range(entries):
            pattern = patterns[t, c]
            if pattern > high:
                above[t] += 1
            elif pattern >= low:
                counts[t, (pattern - low) >> shift] += 1


@compiled("F[:, ::1]", "F[::1]", "F[::1]")
def banded(values: NDArray, floors: NDArray, tops: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
    """Find the entries (T, C) whose magnitude is above their task's floor and not above its top.

    Return their magnitudes (T, most) and how many each task has of them (T), the columns they are in (columns, T), how
    many entries of each task are above its top (T), and of the other columns' sums of these how many more are positive
    than negative.
    """
    tasks, entries = values.shape
    above, balance = np.zeros(tasks, np.int64), 0
    magnitudes, columns = np.empty((tasks, W), values.dtype), np.empty((W, tasks), values.dtype)
    found, doubtful = np.zeros(tasks, np.int64), 0
    sums, inside = np.empty(W), np.empty(W, np.uint8)
    zero = values.dtype.type(0)
    for start in range(0, entries, W):
        width = min(W, entries - start)
        sums[:] = 0
        inside[:] = 0
        for t in range(tasks):
            floor, top, row, count = floors[t], tops[t], values[t, start : start + width], 0
            for c in range(width):
                magnitude = abs(row[c])
                sums[c] += row[c] if magnitude > top else zero
                count += magnitude > top
                inside[c] |= (magnitude > floor) & (magnitude <= top)
            above[t] += count
        if len(columns) < doubtful + W:
            columns = np.concatenate((columns, np.empty_like(columns)))
        if magnitudes.shape[1] < found.max() + W:
            magnitudes = np.concatenate((magnitudes, np.empty_like(magnitudes)), axis=1)
        for c in range(width):
            if not inside[c]:
                balance += (sums[c] > 0) - (sums[c] < 0)
                continue
            for t in range(tasks):
                columns[doubtful, t] = values[t, start + c]
                magnitude = abs(values[t, start + c])
                if floors[t] < magnitude <= tops[t]:
                    magnitudes[t, found[t]] = magnitude
                    found[t] += 1
            doubtful += 1
    return magnitudes, found, columns[:doubtful], above, balance
