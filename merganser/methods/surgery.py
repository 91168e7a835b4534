"""Representation Surgery: a merged model, and a bottleneck per task that its features pass through."""

import torch
from torch import Tensor

from merganser.at_run_time.additions import bottlenecks
from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method


@method(
    family="learned",
    formula=r"0, \quad h \mapsto h - W_t^{up}\,\mathrm{relu}(W_t^{down} h)",
    involvement="TTA",
    paper="Representation Surgery for Multi-Task Model Merging, ICML 2024, arXiv:2402.02705",
    law="without a step nothing changes; the distance to the task's own features never ends above where it began",
    at_run_time=bottlenecks,
    weighted=False,
)
def surgery(layer: LayerDeltas) -> Tensor:
    """Leave the merged model as it is; at evaluation a task's features pass through the task's bottleneck.

    The stage `surgery` trains the bottlenecks: low-rank, without biases, from no change on, by the mean absolute
    difference to the features of the task's own model. An entry reads `surgery/NAME`, which says the merged model
    (`of: differences/NAME`). The task is known, and no labels are read.
    """
    return torch.zeros_like(layer.deltas[0])
