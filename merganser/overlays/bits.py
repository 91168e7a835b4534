"""Yes or no in one bit each."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = 8


def pack_bits(marks: Tensor) -> Tensor:
    """Pack booleans eight to a byte, the first in the lowest bit; what is left of the last byte is zero."""
    flat = marks.flatten().to(torch.uint8)
    eights = pad(flat, (0, -len(flat) % BITS)).view(-1, BITS)
    packed = eights[:, 0].clone()
    for place in range(1, BITS):
        packed |= eights[:, place] << place
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Take `count` booleans out of their bytes."""
    places = torch.arange(BITS, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> places & 1).flatten()[:count].bool()


def bytes_of(count: int) -> int:
    """Return how many bytes so many bits take."""
    return -(-count // BITS)
