"""CAT Merging: take out of each task's maps the outputs by which they disturb the other tasks' inputs most.

Shape legend: T tasks, M outputs, N inputs, K directions taken out.
"""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Count, NonNegative, Scaling, method
from merganser.operators.sums import scaled_sum

NOISE = 1e-10  # of the largest eigenvalue in size: a smaller one is rounding errors


@method(
    statistics=("gram",),
    family="statistics",
    formula=r"\lambda \sum_i \prod_{j \ne i} (I - B_j B_j^\top)\, \Delta_i, "
    r"\quad B_j \text{: the leading eigenvectors of } \sum_{i \ne j} \Delta_i (G_j - w G_i) \Delta_i^\top",
    paper="Sun et al., ICML 2025, arXiv:2505.06977",
    law="with one task, or with k 0, it is task arithmetic; what is left of a task has nothing in the last directions",
    cost="linear system",
    involvement="VDI",
    vectors=lambda layer, *, scaling=1.0, **_: scaled_sum(layer.deltas, scaling),
    in_order=True,
    ours=("k", "eta"),
    copies=11,
)
def cat_merging(
    layer: LayerDeltas, *, k: Count = 4, eta: NonNegative = 5.0, rescale: bool = False, scaling: Scaling = 0.4
) -> Tensor:
    """Add the tasks' deltas, each without the output directions in which it disturbs another task.

    A direction disturbs task j by what the others' maps do there to its inputs, less `eta` times what they do to their
    own; the `k` largest are taken out of the others, if above 0. `eta` is the paper's lambda. Directions of several
    tasks are taken out one task after another. With `rescale: true` a delta keeps its length each time, as in a port of
    the authors' code, whose values the defaults are. Maps without measured inputs are added unchanged, and so are
    all other parameters; the paper also masks some entries of norms and biases.
    """
    gram, side = layer.statistics.measured.get("gram"), layer.statistics.side
    if gram is None:
        return scaled_sum(layer.deltas, scaling)
    maps = layer.deltas.double() if side == "columns" else layer.deltas.mT.double()
    grams = gram.double()
    removed = [disturbing(maps, grams, task, eta, k) for task in range(len(maps))]
    merged = torch.zeros_like(maps[0])
    for own, left in enumerate(maps):
        for other, basis in enumerate(removed):
            if other != own:
                left = without(left, basis, rescale)
        merged += left
    merged = (scaling * merged).to(layer.dtype)
    return merged if side == "columns" else merged.mT


def disturbing(maps: Tensor, grams: Tensor, task: int, eta: float, k: int) -> Tensor:
    """Return the output directions (M, K) in which the other tasks' maps (T, M, N) disturb a task most, in float64.

    Inputs are given by their Gram matrices (T, N, N).

    >>> maps = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]]).double()
    >>> disturbing(maps, torch.ones(2, 1, 1).double(), 0, eta=0.5, k=1).abs().tolist()
    [[1.0], [0.0]]
    """
    disturbance = torch.zeros(maps.shape[1], maps.shape[1], dtype=torch.float64, device=maps.device)
    for other, mapped in enumerate(maps):
        if other != task:
            disturbance += mapped @ (grams[task] - eta * grams[other]) @ mapped.mT
    values, vectors = torch.linalg.eigh((disturbance + disturbance.mT) / 2)
    large = int((values > NOISE * values.abs().max()).sum())
    return vectors[:, len(values) - min(k, large) :]


def without(delta: Tensor, basis: Tensor, rescale: bool) -> Tensor:
    """Take the directions (M, K) out of a map (M, N); if asked, give back the length.

    >>> without(torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0], [0.0]]), True)
    tensor([[0.],
            [5.]])
    """
    left = delta - basis @ (basis.mT @ delta)
    length = torch.linalg.vector_norm(left)
    return left * (torch.linalg.vector_norm(delta) / length) if rescale and length > 0 else left
