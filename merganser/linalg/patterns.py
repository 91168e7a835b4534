"""The bit patterns of magnitudes: read as integers, they sort like the magnitudes, in every floating-point dtype."""

import torch
from torch import Tensor

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of the floating-point dtype


def patterns_of(values: Tensor) -> Tensor:
    """Return the pattern of each value's magnitude, in a contiguous tensor.

    >>> patterns_of(torch.tensor([0.0, -1.0, 2.0])).tolist()  # in the order of the magnitudes
    [0, 1065353216, 1073741824]
    """
    return values.abs().contiguous().view(INTEGERS[values.dtype.itemsize])
