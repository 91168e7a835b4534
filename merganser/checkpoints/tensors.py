"""What describes a stored tensor: its dtype as safetensors spells it, its shape, its bytes."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Spec:
    """A tensor's dtype (as safetensors spells it) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def spec_of(tensor: Tensor) -> Spec:
    """Describe a tensor."""
    return Spec(NAMES_OF_DTYPES[tensor.dtype], tuple(tensor.shape))


def to_bytes(tensor: Tensor) -> memoryview:
    """View a tensor's values as bytes: its own memory, where it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
