"""Model Breadcrumbs: drop each layer's smallest entries and its outliers, add the rest."""

from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import join_pieces
from merganser.linalg.counts import ceiling_of, count_of
from merganser.linalg.thresholds import each_band
from merganser.merging.method import Fractions, Scaling, method
from merganser.operators.coefficients import each_of
from merganser.operators.sums import total


@method(
    family="sparse",
    formula=r"\lambda \sum_t m_t \odot \Delta_t, "
    r"\quad m_t = \mathbb{1}\big[\lfloor \beta n \rfloor \le \mathrm{rank}(|\Delta_t|) < \lceil \gamma n \rceil\big]",
    involvement="VDI",
    paper="Davari and Belilovsky, ECCV 2024, arXiv:2312.06795",
    law="with nothing dropped it is task arithmetic",
)
def breadcrumbs(
    layer: LayerDeltas, *, beta: Fractions = 0.85, gamma: Fractions = 0.993, scaling: Scaling = 0.3
) -> Tensor:
    """Add each task's entries above its smallest and below its largest ones, layer by layer.

    `beta` is the share of small entries dropped of each parameter; above the share `gamma` begin the outliers. Entries
    equal to the smallest or to the largest that is kept are kept too.
    """
    above, wanted, n = [], [], layer.deltas[0].numel()
    for low, high in zip(each_of(beta, layer.tasks), each_of(gamma, layer.tasks), strict=True):
        if low >= high:
            raise InputError(f"beta: {low} is not below gamma, {high}: no entry would be kept; lower beta")
        above.append(n - ceiling_of(high, n))
        wanted.append(ceiling_of(high, n) - count_of(low, n))
    summed = (total(block).mul_(scaling) for block in each_band(layer.deltas, above, wanted))
    return join_pieces(summed, layer.shape, layer.dtype, layer.deltas.device)
