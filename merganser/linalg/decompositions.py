"""What decompositions give.

Shape legend: M rows, N columns, R = min(M, N), K stored singular vectors (K <= R).
"""

from typing import NamedTuple

from torch import Tensor


class Factors(NamedTuple):
    """The SVD of one task matrix: leading vectors, whole spectrum (descending)."""

    u: Tensor  # (M, K)
    s: Tensor  # (R,)
    vh: Tensor  # (K, N)


class Basis(NamedTuple):
    """What the tasks' matrices side by side share: the left part of the SVD of [D_1 .. D_T], on its numerical rank."""

    u: Tensor  # (M, K), in float64, column after column in memory: products of other strides have other last digits
    s: Tensor  # (K,)
