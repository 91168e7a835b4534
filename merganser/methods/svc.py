"""Singular Value Calibration: scale down the directions of a merged delta that several tasks have added to.

Shape legend: T tasks, M rows, N columns, K numerical rank of the merged delta.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.decompositions import Factors
from merganser.linalg.lapack import product
from merganser.linalg.svd import compact
from merganser.merging.method import Densities, Positive, Scaling, method
from merganser.operators.ties import Combine, unscaled_merge

USUAL = 0.3  # the scaling of the merge that the authors calibrate


@method(
    family="spectral",
    formula=r"\lambda \sum_r \gamma_r \sigma_r u_r v_r^\top, "
    r"\quad \gamma_r = \frac{T}{\sum_t \max(f, s_{r,t})}, "
    r"\quad s_{r,t} = \frac{\langle \sigma_r v_r, \Delta_t^\top u_r \rangle}{\lVert \Delta_t^\top u_r \rVert^2}, "
    r"\quad \mathrm{inner}(\Delta_1, \ldots, \Delta_T) = U \Sigma V^\top",
    paper="Li et al., ICML 2026, arXiv:2602.05536",
    law="at floor 1, equal tasks give that task, and tasks of orthogonal rows and columns are added up",
    involvement="VDI",
    cost="svd",
    ours=("density", "scaling"),
    copies=6,
)
def svc(
    layers: LayerSource,
    *,
    inner: Combine = "task_arithmetic",
    density: Densities = 0.2,
    floor: Positive | None = None,
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas], Tensor]:
    """Merge by `inner`, unscaled, and divide each singular value by how often the tasks' responses are counted in it.

    A task's coefficient s in a direction u_r says how many times its own response the merge has of it; `floor`, the
    paper's alpha, is the least that counts, also for a task that does not respond at all. The authors take 1/T on a
    merge of scaling 0.3. The factors are relative to the merge, so that is 1 / (0.3 T) here, the default; FusionBench's
    0.1 is 1/3. `density` is what ties keeps of each whole vector. Ties adds up the tasks that agree; the authors' code
    averages them, and trims each parameter by itself.
    """
    inner_merge = unscaled_merge(layers, inner, density)
    least = 1 / (USUAL * len(layers.tasks)) if floor is None else floor

    def merge(layer: LayerDeltas) -> Tensor:
        merged = compact(inner_merge(layer), exact_to=layer.dtype)
        kept = calibration(layer.deltas, merged, least)
        return product(merged.u, (scaling * kept * merged.s).unsqueeze(1) * merged.vh, layer.dtype)

    return merge


def calibration(deltas: Tensor, merged: Factors, floor: float) -> Tensor:
    """Return the factor (K,) of each singular value of a merged delta, given the tasks' deltas (T, M, N), in float64.

    >>> axis = torch.eye(2, 1, dtype=torch.float64)
    >>> twice = Factors(axis, torch.tensor([4.0], dtype=torch.float64), axis.mT)
    >>> calibration(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]] * 2), twice, 1.0)
    tensor([0.5000], dtype=torch.float64)
    """
    counted = torch.zeros_like(merged.s)
    for delta in deltas:
        response = product(delta.mT, merged.u).mT  # (K, N)
        size = response.square().sum(1)
        own = merged.s * (response * merged.vh).sum(1)
        counted += torch.where(size > rounding(delta) ** 2, own / size, 0.0).clamp(min=floor)
    return len(deltas) / counted


def rounding(delta: Tensor) -> float:
    """Return the length up to which a response of a delta (M, N) is rounding errors of the direction."""
    return max(delta.shape) * torch.finfo(delta.dtype).eps * float(torch.linalg.vector_norm(delta, dtype=torch.float64))
