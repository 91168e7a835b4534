"""Arcee Fusion: keep the entries of a task vector whose importance sticks out."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Scaling, method
from merganser.operators.angles import base_of, grouped, ungrouped
from merganser.operators.importance import fence, importances


@method(
    on_models=True,
    family="sparse",
    formula=r"\lambda \sum_t \mathbb{1}\big[s_t \ge \mathrm{Q}_2 + 1.5 (\mathrm{Q}_3 - \mathrm{Q}_1)\big] \odot "
    r"\Delta_t, \quad s_t = |\Delta_t| \cdot \mathrm{KL}(\mathrm{softmax}\, W_t \,\Vert\, \mathrm{softmax}\, W_0)",
    paper="none (Arcee AI's, in mergekit)",
    law="a task of which all entries matter alike is kept whole; what is kept of a task is its own entry",
    involvement="NDI",
    efficiency="High",
    ours=("scaling",),
)
def arcee_fusion(layer: LayerDeltas, *, scaling: Scaling = 1.0) -> Tensor:
    """Add each task's entries whose importance is beyond the median by 1.5 times the interquartile range.

    An entry's importance is its size times the divergence of its row's softmax from the base's; the quartiles are those
    of its parameter. Published for one task; of several, what is kept is added up.
    """
    base, rows = base_of(layer, "row"), grouped(layer.deltas, "row")
    merged = torch.zeros(base.shape, dtype=torch.float64, device=base.device)
    for delta in rows:
        scores = importances(delta, base)
        merged += delta * (scores >= fence(scores.flatten()))
    return ungrouped(merged.mul_(scaling), layer.shape, "row").to(layer.dtype)
