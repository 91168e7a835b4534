"""Subspace Boosting: raise the small singular values of a merged delta, so that it keeps its rank."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.lapack import product
from merganser.linalg.svd import compact
from merganser.merging.method import Densities, Fraction, Scaling, method
from merganser.operators.subspaces import triples_holding
from merganser.operators.ties import Combine, unscaled_merge


@method(
    family="spectral",
    formula=r"\lambda\, U \max(\Sigma, \sigma_k) V^\top, "
    r"\quad \sum_{i < k} \sigma_i < \eta \sum_i \sigma_i \le \sum_{i \le k} \sigma_i, "
    r"\quad \mathrm{inner}(\Delta_1, \ldots, \Delta_T) = U \Sigma V^\top",
    paper="Skorobogat et al., 2025, arXiv:2506.16506",
    law="eta 1 leaves the inner merge as it is; with eta 0 all singular values are the largest",
    involvement="VDI",
    cost="svd",
    ours=("density", "scaling"),
    searched={"eta": (0.0, 0.01, 0.02)},
    copies=6,
)
def subspace_boosting(
    layers: LayerSource,
    *,
    inner: Combine = "task_arithmetic",
    density: Densities = 0.2,
    eta: Fraction = 0.01,
    scaling: Scaling = 0.2,
) -> Callable[[LayerDeltas], Tensor]:
    """Merge by `inner`, unscaled, and raise each singular value to the one at which the share `eta` is reached.

    The share, the paper's beta, is of the sum of all singular values, added up from the largest on. Only directions of
    the numerical rank are raised. `density` is what ties keeps of each whole vector.
    """
    inner_merge = unscaled_merge(layers, inner, density)

    def merge(layer: LayerDeltas) -> Tensor:
        u, s, vh = compact(inner_merge(layer), exact_to=layer.dtype)
        least = s[triples_holding(s, eta) - 1] if len(s) else 0.0
        return product(u, (scaling * s.clamp(min=least)).unsqueeze(1) * vh, layer.dtype)

    return merge
