"""Model Stock: from the base towards the models' mean, as far as the angle between their task vectors says."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Scaling, method
from merganser.operators.angles import combined, grouped, inner_products, mean_cosine, ungrouped


@method(
    family="arithmetic",
    formula=r"\lambda \frac{T \cos \theta}{1 + (T - 1) \cos \theta} \cdot \frac{1}{T} \sum_t \Delta_t, "
    r"\quad \cos \theta = \max\Bigl(0, \frac{2}{T (T - 1)} \sum_{i < j} "
    r"\frac{\langle \Delta_i, \Delta_j \rangle}{\lVert \Delta_i \rVert \lVert \Delta_j \rVert}\Bigr)",
    paper="Jang et al., ECCV 2024, arXiv:2403.19522",
    law="equal models are kept; models at right angles leave the base",
    ours=("scaling",),
)
def model_stock(
    parameter: LayerSource, *, granularity: Literal["parameter", "row"] = "parameter", scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Go from the base towards the models' mean, the further the smaller the angle between their deltas.

    For more than two models it is the mean cosine of all pairs. Each parameter has its own angle, and with
    `granularity: row` each row does (the paper's filters). Deltas that point away from each other leave the base.
    """
    tasks, inner = len(parameter.tasks), inner_products(parameter, granularity)

    def merge(piece: LayerDeltas) -> Tensor:
        cosine = mean_cosine(inner(piece)).clamp(min=0)
        ratio = tasks * cosine / (1 + (tasks - 1) * cosine)
        shares = (scaling * ratio / tasks).expand(tasks, -1)
        return ungrouped(combined(grouped(piece.deltas, granularity), shares), piece.shape, granularity)

    return merge
