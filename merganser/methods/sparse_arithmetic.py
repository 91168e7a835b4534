"""Task arithmetic of sparse task vectors as mergekit computes it: its ties, dare, della and breadcrumbs.

Legend: T tasks, N entries of a row, n of a parameter.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Literal, TypeVar

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, join_pieces
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import Band, band_of, cut_of, each_in_band
from merganser.merging.method import Densities, Fraction, Scaling, method
from merganser.operators.angles import ordered_sum, row_size, row_sums
from merganser.operators.coefficients import each_of, task_weights
from merganser.operators.drop import by_magnitude, drawn
from merganser.operators.sums import times
from merganser.operators.ties import Agreement, elect_sign, over_stacks, weighted_disjoint_mean

R = TypeVar("R")
Keep = Literal["largest", "middle", "random", "random_by_size"]
Sparse = Callable[[LayerDeltas], Iterator[Tensor]]  # the blocks (T, C) of a piece, some whole rows each


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
    parameter: LayerSource,
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

    `keep`: the largest (mergekit's ties), the middle below the share `gamma` (breadcrumbs), or at random: all
    entries alike (dare) or with chances that spread by `eps` from a row's smallest to its largest (della).
    `rescale`: each task's sparse delta to the L1 norm of the whole. `averaging: sum` divides by nothing.
    `coefficients` are the weights w. If opposite deltas cancel, the positive ones win.
    """
    weights = task_weights({"coefficients": coefficients}, parameter.tasks) or (lambda norms: (1.0,) * len(norms))
    sparse = sparsifier(parameter, keep, each_of(density, parameter.tasks), gamma, eps)
    sparse = rescaler(parameter, sparse) if rescale else sparse

    def merge(piece: LayerDeltas) -> Tensor:
        own = weights(piece.norms)

        def merged(block: Tensor) -> Tensor:
            sign = elect_sign(times(block, own), draw=1) if elect else None
            mean = weighted_disjoint_mean(block, sign, own, averaging == "disjoint")
            return mean if scaling == 1 else scaling * mean

        return join_pieces(map(merged, sparse(piece)), piece.shape, piece.dtype, piece.deltas.device)

    return merge


def sparsifier(parameter: LayerSource, keep: Keep, density: Sequence[float], gamma: float, eps: float) -> Sparse:
    """Return what keeps the share `density` of each of the T deltas of a parameter; the other entries become 0.

    `gamma`: above which share of the magnitudes the entries are not `middle`. `eps`: how far the chances to be kept
    spread, from a row's smallest entry to its largest, at `random_by_size`.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.tensor([[1.0, -4.0, 2.0, 1.0]]))
    >>> from merganser.inputs.pieces import PiecesInMemory
    >>> list(sparsifier(PiecesInMemory([layer]), "largest", [0.5], 1.0, 0.0)(layer))
    [tensor([[ 0., -4.,  2.,  0.]])]
    """
    if all(share == 1 for share in density):
        return lambda piece: iter(blocks(piece.deltas, row_size(piece.deltas)))
    if keep in ("random", "random_by_size"):
        return lambda piece: _drawn(piece, density, eps if keep == "random_by_size" else None)
    band = _band(parameter, keep, density, gamma)
    return lambda piece: each_in_band(piece.deltas, band, row_size(piece.deltas))


def _band(parameter: LayerSource, keep: Keep, density: Sequence[float], gamma: float) -> Band:
    """Find which magnitudes of each task are the largest, or the middle ones; of a task at density 1 all are kept."""
    some = [task for task, share in enumerate(density) if share < 1]
    n = parameter.entries
    wanted = [count_of(density[task], n) for task in some]
    stacks = partial(_stacks_of, parameter, some)
    if keep == "largest":
        levels = cut_of(stacks, lambda _: [max(1, count) for count in wanted])
        band = Band(levels, (inf,) * len(some))
    else:
        band = band_of(stacks, [min(n - count, count_of(1 - gamma, n)) for count in wanted], wanted)
    by_task = dict(zip(some, zip(*band, strict=True), strict=True))
    return Band(*zip(*(by_task.get(task, (0.0, inf)) for task in range(len(density))), strict=True))


def _stacks_of(parameter: LayerSource, tasks: Sequence[int], function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function to the deltas of some tasks of each piece."""
    every = len(tasks) == len(parameter.tasks)
    return over_stacks(parameter, lambda stack: function(stack if every else stack[list(tasks)]))


def _drawn(piece: LayerDeltas, density: Sequence[float], eps: float | None) -> Iterator[Tensor]:
    """Keep entries at random: all of a task with one chance, or with chances that spread by `eps` in each row."""
    for block, numbers in drawn(piece, row_size(piece.deltas)):
        kept = torch.empty_like(block)
        for delta, own, share, out in zip(block, numbers, density, kept, strict=True):
            if share == 1:
                out.copy_(delta)
            elif eps is None:
                torch.mul(delta, own.ge_(1 - share), out=out)
            else:
                rows = delta.view(-1, piece.shape[-1] if piece.shape else 1)
                torch.mul(delta, own.ge_(1 - chances_by_size(rows, share, eps).view(-1)), out=out)
        yield kept


def rescaler(parameter: LayerSource, sparse: Sparse) -> Sparse:
    """Return what scales each sparse delta of a parameter to the L1 norm of the whole, where anything is left.

    >>> layer = LayerDeltas("bias", "vector", ("dtd",), torch.tensor([[1.0, -4.0, 2.0, 1.0]]))
    >>> from merganser.inputs.pieces import PiecesInMemory
    >>> whole = PiecesInMemory([layer])
    >>> list(rescaler(whole, sparsifier(whole, "largest", [0.5], 1.0, 0.0))(layer))
    [tensor([[ 0.0000, -5.3333,  2.6667,  0.0000]])]
    """

    def sizes(piece: LayerDeltas) -> Tensor:
        size = row_size(piece.deltas)
        return torch.stack([row_sums(each, size, torch.abs) for each in (sparse(piece), blocks(piece.deltas, size))])

    left, whole = ordered_sum(parameter.map(sizes))
    factors = torch.where(left > 0, whole / left, 1.0).unsqueeze(1)
    return lambda piece: ((block * factors).to(block.dtype) for block in sparse(piece))


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
