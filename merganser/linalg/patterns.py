"""The bit patterns of magnitudes: read as integers, they sort like the magnitudes, in every floating-point dtype.

Legend: T tasks, C entries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of the floating-point dtype


def patterns_of(values: Tensor) -> Tensor:
    """Return the pattern of each value's magnitude, in a contiguous tensor.

    >>> patterns_of(torch.tensor([0.0, -1.0, 2.0])).tolist()  # in the order of the magnitudes
    [0, 1065353216, 1073741824]
    """
    return values.abs().contiguous().view(INTEGERS[values.dtype.itemsize])


def levels_of(patterns: Sequence[int], values: Tensor) -> Tensor:
    """Return the magnitudes (T) of patterns, in the values' dtype and on their device.

    The pattern -1 gives a number below all magnitudes, a pattern that no magnitude has gives infinity.

    >>> levels_of([-1, 1065353216], torch.zeros(2, 1))
    tensor([-1.,  1.])
    """
    magnitudes = [_magnitude(pattern, values.dtype) for pattern in patterns]
    return torch.tensor(magnitudes, dtype=values.dtype, device=values.device)


def column(numbers: Sequence[int], patterns: Tensor) -> Tensor:
    """Return one number per task as a column (T, 1) that broadcasts over the patterns (T, C)."""
    return torch.tensor(numbers, dtype=patterns.dtype, device=patterns.device).unsqueeze(1)


def _magnitude(pattern: int, dtype: torch.dtype) -> float:
    if pattern < 0:
        return -1.0
    most = torch.tensor(torch.inf, dtype=dtype).view(INTEGERS[dtype.itemsize])
    return float(most.clamp(max=pattern).view(dtype))
