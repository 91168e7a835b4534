"""SCE: select the entries in which the tasks differ most, calculate the tasks' weights, erase minority signs."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.disjoint import weighted_disjoint_mean
from merganser.operators.elect import elect_sign
from merganser.operators.salience import mean_squares, most_varied


@method(
    family="sparse",
    formula=r"\lambda \frac{\sum_{t \in A} \eta_t \hat\Delta_t}{\sum_{t \in A} \eta_t}, "
    r"\quad \hat\Delta_t = m \odot \Delta_t, \quad m = \mathbb{1}\big[\mathrm{Var}_t \Delta_t \in \mathrm{top}_d\big], "
    r"\quad \eta_t = \overline{\hat\Delta_t^2}, "
    r"\quad A = \{t : \mathrm{sgn}\, \hat\Delta_t = \mathrm{sgn} \sum_j \hat\Delta_j\}",
    paper="Wan et al., 2024, arXiv:2408.07990",
    law="one task at density 1 is its own model; equal models at density 1 too",
    involvement="NDI",
    efficiency="High",
    ours=("scaling",),
)
def sce(layer: LayerDeltas, *, density: PositiveFraction = 1.0, scaling: Scaling = 1.0) -> Tensor:
    """Average the tasks that agree in sign by their mean squares, in the entries in which the tasks differ most.

    `density` is the share kept of each parameter's entries in which any two tasks differ; at 1 all entries are kept.
    Where opposite deltas cancel, the positive ones win.
    """
    selected = most_varied(layer.deltas, density)
    weights = mean_squares(selected).tolist()
    sign = elect_sign(selected, draw=1)
    return scaling * weighted_disjoint_mean(selected, sign, weights)
