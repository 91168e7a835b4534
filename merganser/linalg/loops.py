"""Compiled loops over the entries of one layer, for a CPU: each passes over memory once, where torch makes copies.

Legend: T tasks, P pairs of tasks, G groups of entries, C entries, processed W at a time. Sums are in float64, over the
tasks in their order.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

W = 512


def compiled(*arguments: str) -> Callable[[Callable], Callable]:
    """Compile for arguments of these types, F standing for float32 and float64, I for int16, int32 and int64."""
    dtypes = {"F": ("float32", "float64"), "I": ("int16", "int32", "int64")}
    letter = arguments[0][0]
    signatures = [f"({', '.join(arguments)})".replace(letter, dtype) for dtype in dtypes.get(letter, letter)]

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


@compiled("F[:, :, ::1]", "float64[:, ::1]", "F[:, ::1]", "float64[::1]", "F[:, ::1]")
def weighted_sum(values: NDArray, weights: NDArray, start: NDArray, beyond: NDArray, sums: NDArray) -> None:
    """Write the sums of the tasks' entries (T, G, C) times their weights (T, G), and a start (G, C) times `beyond` (G).

    A start of no groups adds nothing.
    """
    tasks, groups, entries = values.shape
    wide_sums = np.empty(W)
    for g in range(groups):
        for first in range(0, entries, W):
            width = min(W, entries - first)
            wide_sums[:] = 0
            for t in range(tasks):
                weight, row = weights[t, g], values[t, g, first : first + width]
                for c in range(width):
                    wide_sums[c] += row[c] * weight
            if len(start):
                weight, row = beyond[g], start[g, first : first + width]
                for c in range(width):
                    wide_sums[c] += row[c] * weight
            out = sums[g, first : first + width]
            for c in range(width):
                out[c] = wide_sums[c]


@compiled("F[:, ::1]", "int64", "F[::1]", "float64[:, ::1]")
def products(values: NDArray, begin: int, start: NDArray, sums: NDArray) -> None:
    """Write the products (P, C) of each two tasks' entries from `begin` on, and a task's own squares, in float64.

    The entries are start + value, in float64; an empty start adds nothing.
    """
    tasks, entries = len(values), sums.shape[1]
    wide = np.empty((tasks, W))
    for first in range(0, entries, W):
        width = min(W, entries - first)
        place = begin + first
        for t in range(tasks):
            row, own = values[t, place : place + width], wide[t]
            for c in range(width):
                own[c] = row[c]
            if len(start):
                more = start[place : place + width]
                for c in range(width):
                    own[c] += more[c]
        pair = 0
        for i in range(tasks):
            for j in range(i, tasks):
                one, other, out = wide[i], wide[j], sums[pair, first : first + width]
                for c in range(width):
                    out[c] = one[c] * other[c]
                pair += 1


@compiled("uint16[::1]", "uint16[::1]", "float32[::1]")
def bfloat16_differences(values: NDArray, start: NDArray, differences: NDArray) -> bool:
    """Write values - start (C,), the bits of bfloat16, in float32; tell whether all of both are finite."""
    bits, others = np.empty(W, np.uint32), np.empty(W, np.uint32)
    wide, less = bits.view(np.float32), others.view(np.float32)
    largest = np.uint16(0)
    for first in range(0, len(values), W):
        width = min(W, len(values) - first)
        one, other, out = (
            values[first : first + width],
            start[first : first + width],
            differences[first : first + width],
        )
        for c in range(width):
            largest = max(largest, one[c] & np.uint16(0x7FFF), other[c] & np.uint16(0x7FFF))
        for c in range(width):
            bits[c] = np.uint32(one[c]) << np.uint32(16)
            others[c] = np.uint32(other[c]) << np.uint32(16)
        for c in range(width):
            out[c] = wide[c] - less[c]
    return bool(largest < 0x7F80)


TWISTED = 624  # numbers of the Mersenne Twister at a time
MIDDLE = 397
REST = TWISTED - MIDDLE
UPPER, LOWER, MATRIX = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)


@numba.njit(inline="always")
def _twist(one: Any, following: Any) -> Any:
    mixed = (one & UPPER) | (following & LOWER)
    return (mixed >> np.uint32(1)) ^ ((np.uint32(0) - (mixed & np.uint32(1))) & MATRIX)


@compiled("uint32[::1]", "int64", "float32[::1]")
def uniform(state: NDArray, position: int, numbers: NDArray) -> int:
    """Write the next numbers (C,) in [0, 1) of a Mersenne Twister (624,), as torch draws them; return its position."""
    done = 0
    while done < len(numbers):
        if position == TWISTED:
            for i in range(REST):
                state[i] = state[i + MIDDLE] ^ _twist(state[i], state[i + 1])
            for i in range(MIDDLE - 1):
                state[i + REST] = state[i] ^ _twist(state[i + REST], state[i + REST + 1])
            state[TWISTED - 1] = state[MIDDLE - 1] ^ _twist(state[TWISTED - 1], state[0])
            position = 0
        width = min(TWISTED - position, len(numbers) - done)
        part, out = state[position : position + width], numbers[done : done + width]
        for i in range(width):
            y = part[i]
            y ^= y >> np.uint32(11)
            y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
            y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
            y ^= y >> np.uint32(18)
            out[i] = np.float32(np.int32(y & np.uint32(0xFFFFFF))) * np.float32(2.0**-24)
        position += width
        done += width
    return position
