"""OPCM: merge one task after another, each without what lies in the directions that the merge has already.

Shape legend: T tasks, M rows, N columns, K numerical rank of the merge so far.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import compact
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.angles import squared_lengths
from merganser.operators.sums import total

ROUNDING = 1e-12  # a cumulative sum may be this share above what it adds up to


@method(
    family="spectral",
    formula=r"\lambda \frac{\frac{1}{T} \sum_t \lVert \tau_t \rVert}{\lVert A_T \rVert} A_T, "
    r"\quad A_1 = \Delta_1, \quad A_t = A_{t-1} + \Delta_t - U \bigl(m \odot U^\top \Delta_t V\bigr) V^\top, "
    r"\quad A_{t-1} = U \Sigma V^\top, \quad m_{ij} = \mathbb{1}[i = j \text{ or } i, j \le k]",
    paper="Tang et al., 2025, arXiv:2501.09522",
    law="one task is its own model; the merge is as long as the tasks' vectors are on average",
    cost="svd",
    vectors="alike",
    in_order=True,
    ours=("scaling",),
    copies=7,
)
def opcm(layers: LayerSource, *, eta: Fraction = 0.5, scaling: Scaling = 1.0) -> Callable[[LayerDeltas], Tensor]:
    """Add the tasks one by one, each outside the leading directions of those before it, and keep their length.

    The leading directions are those that together hold at most the share `eta`, the paper's alpha, of the sum of the
    singular values; of the others, a task's part along each single one is left out as well. Parameters that are not
    matrices are added up. The whole vector is brought to the mean length of the tasks' vectors. The tasks come in the
    order of their names; another order gives another merge.
    """

    def squares(layer: LayerDeltas) -> Tensor:
        merged = squared_lengths(accumulated(layer, eta).unsqueeze(0))
        return torch.cat([merged, squared_lengths(layer.deltas)]).cpu()

    length, *each = torch.stack(list(layers.map(squares))).sum(0).sqrt().tolist()
    factor = scaling * sum(each) / len(each) / length if length else 0.0
    return lambda layer: (factor * accumulated(layer, eta)).to(layer.dtype)


def accumulated(layer: LayerDeltas, eta: float) -> Tensor:
    """Return the sum of the tasks' deltas, each outside what those before it have, in float64."""
    if layer.kind == "vector":
        return total(layer.deltas)
    merged = layer.deltas[0].double()
    for delta in layer.deltas[1:]:
        merged = merged + outside(delta, compact(merged, exact_to=layer.dtype), eta)
    return merged


def outside(delta: Tensor, known: Factors, eta: float) -> Tensor:
    """Return a delta (M, N) without its part in a merge's leading directions, and along each other one, in float64.

    >>> axes = Factors(torch.eye(2).double(), torch.tensor([3.0, 1.0]).double(), torch.eye(2).double())
    >>> outside(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), axes, 0.5)
    tensor([[0., 2.],
            [3., 0.]], dtype=torch.float64)
    """
    u, s, vh = known
    held = s.cumsum(0)
    leading = int((held <= eta * (1 + ROUNDING) * held[-1:]).sum())
    exact = delta.double()
    inner = u.mT @ exact @ vh.mT
    taken = inner.diagonal().diag()
    taken[:leading, :leading] = inner[:leading, :leading]
    return exact - u @ taken @ vh
