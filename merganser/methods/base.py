"""The base model itself: zero-shot, the lower bound."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method


@method(
    family="references",
    formula=r"0",
    involvement="NDI",
    efficiency="High",
    paper="none (the model the tasks start from)",
    law="nothing changes",
    by_rows=True,
    weighted=False,
)
def base(layer: LayerDeltas) -> Tensor:
    """Change nothing."""
    return torch.zeros_like(layer.deltas[0])
