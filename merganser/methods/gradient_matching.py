"""Merging by uncertainty-based gradient matching: task arithmetic corrected by where the models' gradients disagree."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Weights, method
from merganser.operators.coefficients import mean_weights
from merganser.operators.information import base_fisher_of, fisher_of, matched_sum


@method(
    statistics=("fisher", "base_fisher"),
    family="statistics",
    formula=r"\sum_t \alpha_t \bigl(H_0 + \sum_j \alpha_j H_j\bigr)^{-1} (H_0 + H_t) \odot \Delta_t, "
    r"\quad H_0 = \frac{1}{T} \sum_t H_0^{(t)}",
    paper="Daheim et al., ICLR 2024, arXiv:2310.12808",
    law="equal information gives the average; without the base's it is Fisher merging",
    involvement="VDI",
    efficiency="Medium",
    weighted=False,
    copies=6,
)
def gradient_matching(layer: LayerDeltas, *, coefficients: Weights = None) -> Tensor:
    """Add the deltas, each entry by its task's share of the models' Fisher information, the base's included.

    H_t is task t's diagonal Fisher information, unnormalised, and H_0 the mean of the base's on each task's data. If
    neither the base nor any task has information, the entry is that of task arithmetic. `coefficients` are T times the
    alpha of the formula: 1 by default, so alpha is 1/T.
    """
    tasks = layer.tasks
    alphas = [weight / len(tasks) for weight in mean_weights(tasks, coefficients)(layer.norms)]
    return matched_sum(layer.deltas, fisher_of(layer), base_fisher_of(layer), alphas)
