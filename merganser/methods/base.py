"""The base model itself: zero-shot, the lower bound."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method


def base_of(layer: LayerDeltas) -> Tensor:
    """Return a delta of zeros."""
    return torch.zeros_like(layer.deltas[0])


@method(
    family="references",
    formula=r"0",
    paper="none (the model the tasks start from)",
    law="nothing changes",
    by_rows=True,
    weighted=False,
    measured=base_of,
)
def base(layer: LayerDeltas) -> Tensor:
    """Change nothing."""
    return base_of(layer)
