"""NUFILT: add each task outside the directions that the merge so far responds to, and relearn what this took away.

Shape legend: T tasks, M rows, N columns, K leading directions of the merge and the task, Q rank of what is relearned.
"""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.descent import adam
from merganser.linalg.svd import compact
from merganser.merging.method import Count, LearningRate, Scaling, method
from merganser.operators.drop import generator_of
from merganser.operators.vectors import scaled_mean

SPREAD = 0.02  # standard deviation of the first factor's entries, before the first step; the second's are 0


@method(
    family="spectral",
    formula=r"\lambda A_T, \quad A_1 = \Delta_1, \quad A_t = A_{t-1} + \Delta_t (I - V V^\top + B C), "
    r"\quad B, C \text{ by gradient steps on } \lVert (\Delta_t - A_t) W \rVert_F^2 + \lVert (A_{t-1} - A_t) V "
    r"\rVert_F^2, \quad V, W \text{: the leading right directions of } A_{t-1}, \Delta_t",
    paper="Qiu et al., 2025, arXiv:2509.21413",
    law="without steps the merge so far keeps its response in its leading directions; one task is its own model",
    cost="gradient steps",
    vectors=scaled_mean,
    in_order=True,
    ours=("scaling",),
    copies=8,
    draws=lambda *, steps, rank, **_: steps > 0 and rank > 0,
)
def nufilt(
    layer: LayerDeltas,
    *,
    k: Count = 128,
    k_own: Count = 8,
    rank: Count = 64,
    steps: Count = 50,
    lr: LearningRate = 1e-3,
    scaling: Scaling = 1.0,
) -> Tensor:
    """Add the tasks one by one, each without its part in the merge's `k` leading right directions.

    Then `steps` of Adam learn a factor of rank `rank` on the task's side, so that in the task's `k_own` leading
    directions the merge is as the task is, and in its own as it was. The factor begins with random numbers. Parameters
    that are not matrices are averaged. The tasks come in the order of their names; another order gives another merge.
    The authors' code merges only the attention's maps and the first of the MLP's, leaves every other parameter at the
    base's weights, and takes the first `k` inputs out of the first task.
    """
    merged = layer.deltas[0].double()
    for task, delta in zip(layer.tasks[1:], layer.deltas[1:], strict=True):
        known = compact(merged, k, exact_to=layer.dtype).vh.mT if k else merged.new_zeros(merged.shape[1], 0)
        own = compact(delta, k_own).vh.mT if k_own else known[:, :0]
        exact = delta.double()
        filtered = exact - (exact @ known) @ known.mT
        wanted = torch.cat([(exact - merged - filtered) @ own, merged.new_zeros(len(merged), known.shape[1])], 1)
        learned = relearned(exact, torch.cat([own, known], 1), wanted, first(layer, task, rank), steps, lr)
        merged = merged + filtered + exact @ learned
    return (scaling * merged).to(layer.dtype)


def first(layer: LayerDeltas, task: str, rank: int) -> Tensor:
    """Draw the first value of the factor C (Q, N), in float64."""
    generator = generator_of(layer.seed, task, layer.name)
    drawn = torch.randn(rank, layer.shape[1], generator=generator, dtype=torch.float64)
    return SPREAD * drawn.to(layer.deltas.device)


def relearned(delta: Tensor, directions: Tensor, wanted: Tensor, factor: Tensor, steps: int, lr: float) -> Tensor:
    """Return B C (N, N) so that delta (M, N) @ B C in the directions (N, K) is nearly the wanted response (M, K).

    The steps begin with B = 0 and C, the factor (Q, N).
    """

    def gradient(both: Tensor) -> Tensor:
        left, right = both.chunk(2)  # B^T and C
        seen, mixed = right @ directions, delta @ left.mT
        lack = (mixed @ seen).sub_(wanted)
        return torch.cat([seen @ lack.mT @ delta, mixed.mT @ lack @ directions.mT]).mul_(2)

    left, right = adam(torch.cat([torch.zeros_like(factor), factor]), gradient, steps, lr).chunk(2)
    return left.mT @ right
