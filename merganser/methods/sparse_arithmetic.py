"""Task arithmetic of sparse task vectors as mergekit computes it: its ties, dare, della and breadcrumbs.

Legend: T tasks, N entries of a row, n of a parameter.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.counts import count_of
from merganser.linalg.thresholds import cut_of, each_band, each_trimmed, in_memory
from merganser.merging.method import Densities, Fraction, Scaling, method
from merganser.operators.angles import grouped, tiles
from merganser.operators.coefficients import each_of, task_weights
from merganser.operators.drop import by_magnitude, generator_of
from merganser.operators.sums import times
from merganser.operators.ties import Agreement, elect_sign, weighted_disjoint_mean

Keep = Literal["largest", "middle", "random", "random_by_size"]


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
    averaging: Agreement = "disjoint",
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


def sparsified(
    layer: LayerDeltas, keep: Keep, density: Sequence[float], gamma: float, eps: float, rescale: bool
) -> Tensor:
    """Keep the share `density` of each of a layer's T deltas (T, ...); at 1 all of it, and 0 for the other entries.

    `gamma`: above which share of the magnitudes the entries are not `middle`. `eps`: how far the chances to be kept
    spread, from a row's smallest entry to its largest, at `random_by_size`. Rescaled: to the delta's own L1 norm.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.tensor([[1.0, -4.0, 2.0, 1.0]]))
    >>> sparsified(layer, "largest", [0.5], 1.0, 0.0, rescale=True)
    tensor([[ 0.0000, -5.3333,  2.6667,  0.0000]])
    """
    found = torch.empty_like(layer.deltas)
    for task, delta, share, out in zip(layer.tasks, layer.deltas, density, found, strict=True):
        out.copy_(delta if share == 1 else _kept(layer, task, delta, keep, share, gamma, eps))
    return _rescaled(found, layer.deltas) if rescale else found


def _kept(layer: LayerDeltas, task: str, delta: Tensor, keep: Keep, share: float, gamma: float, eps: float) -> Tensor:
    n = delta.numel()
    wanted = count_of(share, n)
    if keep in ("largest", "middle"):
        stack, outliers = delta.unsqueeze(0), min(n - wanted, count_of(1 - gamma, n))
        if keep == "middle":
            pieces = each_band(stack, [outliers], [wanted])
        else:
            pieces = each_trimmed(stack, cut_of(in_memory(stack), lambda _: max(1, wanted)))
        return torch.cat(list(pieces), 1).view(delta.shape)
    numbers = torch.rand(n, generator=generator_of(layer.seed, task, layer.name)).to(delta.device).view(delta.shape)
    chances = share if keep == "random" else chances_by_size(delta, share, eps)
    return delta * (numbers >= 1 - chances)


def chances_by_size(delta: Tensor, density: float, eps: float) -> Tensor:
    """Return each entry's chance to be kept: density - eps/2 for its row's smallest, density + eps/2 for the largest.

    Those between rise by rank. A row is the N entries along the last dimension.

    >>> chances_by_size(torch.tensor([1.0, -3.0, 2.0]), 0.5, 0.5)
    tensor([0.2500, 0.7500, 0.5000])
    """
    if not eps / 2 < density < 1 - eps / 2:
        most = 2 * min(density, 1 - density)
        raise InputError(f"eps: {eps} around a density of {density} leaves (0, 1); choose eps below {most:g}")
    order = by_magnitude(torch.atleast_1d(delta))
    n = order.shape[-1]
    falling = density + eps * (0.5 - torch.arange(n, dtype=torch.float64, device=delta.device) / max(1, n - 1))
    if n == 1:
        falling.fill_(density)
    chances = torch.empty(order.shape, device=delta.device)
    return chances.scatter_(-1, order, falling.float().expand(order.shape)).reshape(delta.shape)


def _rescaled(sparse: Tensor, deltas: Tensor) -> Tensor:
    """Scale what is left of each delta (T, ...) to the whole's L1 norm, where anything is."""
    left, whole = (torch.stack(list(_absolute(each))).sum(0) for each in (sparse, deltas))
    factors = torch.where(left > 0, whole / left, 1.0)
    return (sparse * factors.view(-1, *[1] * (sparse.ndim - 1))).to(sparse.dtype)


def _absolute(stack: Tensor) -> Iterator[Tensor]:
    """Yield the sums of sizes (T) of a stack's tiles, in float64."""
    vectors = grouped(stack)
    for rows, columns in tiles(vectors):
        yield vectors[:, rows, columns].double().abs().sum((1, 2))
