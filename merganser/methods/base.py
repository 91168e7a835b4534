"""The base model itself: zero-shot, the lower bound."""

import torch
from torch import Tensor

from merganser.layers import LayerDeltas
from merganser.registry import method


@method(reads="deltas", paper="none (the model the tasks start from)", cost="elementwise", vectors="alike")
def base(layer: LayerDeltas) -> Tensor:
    """Change nothing."""
    return torch.zeros_like(layer.deltas[0])
