"""Small numbers packed into bytes, the first in the lowest bits: booleans, or codes of a few bits."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = 8


def pack_bits(values: Tensor, width: int = 1) -> Tensor:
    """Pack numbers of `width` bits, booleans by default; the last byte is padded with zeros."""
    flat, count = values.flatten().to(torch.uint8), BITS // width
    groups = pad(flat, (0, -len(flat) % count)).view(-1, count)
    packed = groups[:, 0].clone()
    for place in range(1, count):
        packed |= groups[:, place] << width * place
    return packed


def unpack_bits(packed: Tensor, count: int, width: int = 1) -> Tensor:
    """Unpack the first `count` numbers of `width` bits; booleans by default."""
    places = torch.arange(0, BITS, width, dtype=torch.uint8, device=packed.device)
    found = (packed.unsqueeze(1) >> places & (1 << width) - 1).flatten()[:count]
    return found.bool() if width == 1 else found


def bytes_of(count: int, width: int = 1) -> int:
    """Return the number of bytes that hold `count` numbers of `width` bits."""
    return -(-count * width // BITS)
