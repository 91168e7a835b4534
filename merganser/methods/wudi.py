"""WUDI-Merging: the merged delta that interferes least with what each task's own delta does.

Legend: T tasks, M rows, N columns, K numerical rank of the tasks' matrices stacked.
"""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.descent import adam
from merganser.linalg.joint import joint
from merganser.merging.method import Count, LearningRate, Scaling, method, spaced
from merganser.operators.angles import squared_lengths
from merganser.operators.interference import interference
from merganser.operators.sums import total
from merganser.operators.vectors import scaled_mean


@method(
    family="spectral",
    formula=r"\lambda \operatorname{argmin}_M \sum_t \frac{\lVert (M - \Delta_t) \Delta_t^\top \rVert_F^2}"
    r"{\lVert \Delta_t \rVert_F^2}",
    paper="Cheng et al., ICML 2025, arXiv:2503.08099",
    law="tasks whose rows are orthogonal to each other's are added up; one task is its own model",
    cost="gradient steps",
    vectors=scaled_mean,
    searched={"scaling": spaced(0.1, 1.5, 0.1)},
)
def wudi(
    layer: LayerDeltas, *, steps: Count = 300, lr: LearningRate = 1e-5, solve: bool = False, scaling: Scaling = 1.0
) -> Tensor:
    """Begin with the sum of the deltas, and reduce by Adam how much it interferes with each task.

    A linear map's inputs lie nearly in the span of its delta's rows, so the rows stand for the inputs. The steps end
    before the minimum is reached: `lr` is in units of the weights, which move by at most about `steps` times `lr`.
    `solve: true` gives the minimum itself instead. The authors' first code divides by each norm, not by its square.
    """
    if solve:
        return (scaling * least_interference(layer.deltas)).to(layer.dtype)
    found = interference(layer.deltas, squared_lengths(layer.deltas).tolist())
    return (scaling * adam(total(layer.deltas), found.gradient, steps, lr)).to(layer.dtype)


def least_interference(deltas: Tensor) -> Tensor:
    """Return the matrix (M, N) that interferes least with the deltas (T, M, N), in float64; the smallest of these.

    It is B A^+ of `Interference`, by the decomposition P S V^T of the normalised deltas stacked, which is not squared.

    >>> least_interference(torch.tensor([[[2.0, 0.0]], [[4.0, 0.0]]])).round(decimals=4).tolist()
    [[3.0, 0.0]]
    """
    norms = squared_lengths(deltas).sqrt()
    sizes = torch.where(norms > 0, norms, 1.0)
    space = joint((deltas.double() / sizes.view(-1, 1, 1)).to(deltas.dtype).mT)
    turned = torch.zeros(deltas.shape[1], len(space.s), dtype=torch.float64, device=deltas.device)
    for task, norm in enumerate(norms):
        own = space.coordinates(task)  # S P_t^T (K, M)
        turned += norm * own.mT @ (own @ own.mT / space.s**2)
    return turned @ space.u.mT
