"""Stitch sparse regions together (Localize-and-Stitch, arXiv:2408.13656). Legend: T tasks."""

import torch
from torch import Tensor


def stitch(deltas: Tensor, masks: Tensor) -> Tensor:
    """Take each entry from the tasks (T, ...) whose mask has it, their mean where there are several; 0 elsewhere."""
    claims, summed = masks.sum(0), torch.zeros(deltas.shape[1:], dtype=torch.float64, device=deltas.device)
    for delta, mask in zip(deltas, masks, strict=True):
        summed += delta * mask
    return (summed / claims.clamp_(min=1)).to(deltas.dtype)
