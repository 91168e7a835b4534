"""Model Breadcrumbs: drop each layer's smallest entries and its outliers, add the rest."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import join_pieces
from merganser.linalg.counts import ceiling_of, count_of
from merganser.linalg.cuts import band_of, each_in_band
from merganser.merging.method import Fractions, Scaling, method
from merganser.operators.coefficients import each_of
from merganser.operators.sums import total
from merganser.operators.ties import over_stacks


@method(
    family="sparse",
    formula=r"\lambda \sum_t m_t \odot \Delta_t, "
    r"\quad m_t = \mathbb{1}\big[\lfloor \beta n \rfloor \le \mathrm{rank}(|\Delta_t|) < \lceil \gamma n \rceil\big]",
    involvement="VDI",
    paper="Davari and Belilovsky, ECCV 2024, arXiv:2312.06795",
    law="with nothing dropped it is task arithmetic",
)
def breadcrumbs(
    parameter: LayerSource, *, beta: Fractions = 0.85, gamma: Fractions = 0.993, scaling: Scaling = 0.3
) -> Callable[[LayerDeltas], Tensor]:
    """Add each task's entries above its smallest and below its largest ones, layer by layer.

    `beta` is the share of small entries dropped of each parameter; above the share `gamma` begin the outliers. Entries
    equal to the smallest or to the largest that is kept are kept too.
    """
    above, wanted, n = [], [], parameter.entries
    for low, high in zip(each_of(beta, parameter.tasks), each_of(gamma, parameter.tasks), strict=True):
        if low >= high:
            raise InputError(f"beta: {low} is not below gamma, {high}: no entry would be kept; lower beta")
        above.append(n - ceiling_of(high, n))
        wanted.append(ceiling_of(high, n) - count_of(low, n))
    band = band_of(partial(over_stacks, parameter), above, wanted)

    def merge(piece: LayerDeltas) -> Tensor:
        summed = (total(block).mul_(scaling) for block in each_in_band(piece.deltas, band))
        return join_pieces(summed, piece.shape, piece.dtype, piece.deltas.device)

    return merge
