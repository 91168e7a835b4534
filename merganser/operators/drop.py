"""Drop entries at random and rescale the rest (DARE, arXiv:2311.03099).

The random numbers depend on the seed, the task's name and the parameter's name alone: neither the order of tasks and
layers, nor the device, nor a resumed run changes them, and related methods draw the same ones.
"""

from collections.abc import Sequence
from hashlib import sha256

import torch
from torch import Tensor


def uniforms(shape: Sequence[int], *, seed: int, task: str, parameter: str) -> Tensor:
    """Draw one number in [0, 1) per entry, on the CPU."""
    digest = sha256("\0".join((str(seed), task, parameter)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(tuple(shape), generator=generator)


def drop_and_rescale(delta: Tensor, drop_rate: float, *, seed: int, task: str, parameter: str) -> Tensor:
    """Drop each entry with probability `drop_rate`; divide the others by 1 - drop_rate, which keeps the expectation."""
    keep = uniforms(delta.shape, seed=seed, task=task, parameter=parameter) >= drop_rate
    return delta * keep.to(delta.device) / (1 - drop_rate)
