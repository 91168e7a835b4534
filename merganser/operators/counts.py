"""How many entries or singular values a fraction stands for."""

from math import floor

SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996 in binary


def count_of(fraction: float, n: int) -> int:
    """Return floor(fraction * n), forgiving the rounding of the product."""
    return floor(fraction * n + SLACK)
