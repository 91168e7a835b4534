"""The results of decompositions.

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
    """The left singular vectors and singular values of [D_1 .. D_T], up to its numerical rank."""

    u: Tensor  # (M, K), float64, stored column by column: products with other strides differ in their last digits
    s: Tensor  # (K,)
