"""Turn a fraction into a number of entries or singular values."""

from math import ceil, floor

SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996 in binary


def count_of(fraction: float, n: int) -> int:
    """Return floor(fraction * n), tolerating rounding errors in the product.

    >>> count_of(0.29, 100)  # the product is 28.999999999999996
    29
    """
    return floor(fraction * n + SLACK)


def ceiling_of(fraction: float, n: int) -> int:
    """Return ceil(fraction * n), tolerating rounding errors in the product.

    >>> ceiling_of(0.993, 100), ceiling_of(0.07, 100)  # 7.000000000000001
    (100, 7)
    """
    return ceil(fraction * n - SLACK)
