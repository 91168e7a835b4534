"""OptMerge: reduce the interference of the average with the leading part of each task's delta."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.counts import count_of
from merganser.linalg.descent import momentum
from merganser.linalg.svd import truncations
from merganser.merging.method import Count, Fraction, LearningRate, Scaling, method
from merganser.operators.angles import squared_lengths
from merganser.operators.coefficients import share_needed
from merganser.operators.interference import interference
from merganser.operators.sums import total
from merganser.operators.vectors import scaled_mean

KEPT = 0.9  # of each step, in the next one


@method(
    family="spectral",
    formula=r"\lambda M, \quad M \text{ from } \bar\Delta \text{ by gradient steps on } "
    r"\sum_t \frac{\lVert (M - \mathrm{SVD}_k(\Delta_t))\, \mathrm{SVD}_k(\Delta_t)^\top \rVert_F^2}"
    r"{\lVert \Delta_t \rVert_F^2}",
    paper="Wei et al., ICLR 2026, arXiv:2505.19892",
    law="no steps give the average; one task is its own model",
    cost="gradient steps",
    vectors=scaled_mean,
    ours=("scaling",),
    copies=8,
)
def optmerge(
    layer: LayerDeltas,
    *,
    rank_fraction: Fraction | None = None,
    steps: Count = 300,
    lr: LearningRate = 1e-4,
    scaling: Scaling = 1.0,
) -> Tensor:
    """Begin with the average, and reduce by gradient steps how much it interferes with each task's leading part.

    It is wudi with three changes: the tasks' deltas are truncated to the share `rank_fraction` of their rank, 1/T by
    default, the average comes first and not the sum, and the steps are plain ones with a momentum of 0.9.
    """
    kept = count_of(share_needed(len(layer.tasks), rank_fraction=rank_fraction), min(layer.shape))
    guides = (torch.mm(*sides) for sides in truncations(layer.deltas, kept, layer.dtype))
    quadratic = interference(guides, squared_lengths(layer.deltas).tolist())
    average = total(layer.deltas) / len(layer.tasks)
    return (scaling * momentum(average, quadratic.gradient, steps, lr, KEPT)).to(layer.dtype)
