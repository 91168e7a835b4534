"""Booleans packed into bits."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = 8


def pack_bits(marks: Tensor) -> Tensor:
    """Pack booleans eight to a byte, the first in the lowest bit; the last byte is padded with zeros."""
    flat = marks.flatten().to(torch.uint8)
    eights = pad(flat, (0, -len(flat) % BITS)).view(-1, BITS)
    packed = eights[:, 0].clone()
    for place in range(1, BITS):
        packed |= eights[:, place] << place
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Unpack the first `count` booleans."""
    places = torch.arange(BITS, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> places & 1).flatten()[:count].bool()


def bytes_of(count: int) -> int:
    """Return the number of bytes that hold `count` bits."""
    return -(-count // BITS)
