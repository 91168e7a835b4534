"""Task arithmetic of sparse task vectors as mergekit computes it: its ties, dare, della and breadcrumbs."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Densities, Fraction, Scaling, method
from merganser.operators.coefficients import each_of, task_weights
from merganser.operators.disjoint import weighted_disjoint_mean
from merganser.operators.elect import elect_sign
from merganser.operators.sparsify import Keep, sparsified
from merganser.operators.sums import times


def draws(keep: str, density: float | dict[str, float], **_: object) -> bool:
    """Tell whether entries are drawn at random."""
    least = min(density.values(), default=1.0) if isinstance(density, dict) else density
    return keep.startswith("random") and least < 1


@method(
    family="sparse",
    formula=r"\lambda \frac{\sum_{t \in A} w_t \hat\Delta_t}{\sum_{t \in A} w_t}, "
    r"\quad \hat\Delta_t = m_t \odot \Delta_t, "
    r"\quad A = \{t : \mathrm{sgn}\, w_t \hat\Delta_t = \mathrm{sgn} \sum_j w_j \hat\Delta_j\}",
    paper="Goddard et al., 2024, arXiv:2403.13257 (the toolkit whose merges these are)",
    law="one task at density 1 is its own model; without election and mean it is task arithmetic",
    involvement="VDI",
    efficiency="High",
    weighted=False,
    ours=("eps", "scaling"),
    draws=draws,
)
def sparse_arithmetic(
    layers: LayerSource,
    *,
    keep: Keep = "largest",
    density: Densities = 1.0,
    gamma: Fraction = 0.99,
    eps: Fraction = 0.1,
    rescale: bool = False,
    elect: bool = True,
    averaging: Literal["disjoint", "sum"] = "disjoint",
    coefficients: dict[str, Scaling] | Literal["inverse_norm"] | None = None,
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas], Tensor]:
    """Keep a share of each parameter's entries, elect a sign per entry, average by weight the tasks that agree.

    `keep`: the largest (mergekit's ties), the middle below the share `gamma` (breadcrumbs), or at random: all entries
    alike (dare) or with chances that spread by `eps` from a row's smallest to its largest (della). `rescale`: each
    task's sparse delta to the L1 norm of the whole. `averaging: sum` divides by nothing. `coefficients` are the weights
    w. Where opposite deltas cancel, the positive ones win.
    """
    weights = task_weights({"coefficients": coefficients}, layers.tasks) or (lambda norms: (1.0,) * len(norms))
    shares = each_of(density, layers.tasks)

    def merge(layer: LayerDeltas) -> Tensor:
        sparse, own = sparsified(layer, keep, shares, gamma, eps, rescale), weights(layer.norms)
        sign = elect_sign(times(sparse, own), draw=1) if elect else None
        return scaling * weighted_disjoint_mean(sparse, sign, own, averaging == "disjoint")

    return merge
