"""NuSLERP: a point on the arc between two task vectors, or two models, whole parameters or each row or column."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import (
    Granularity,
    arc_shares,
    base_vectors,
    combined,
    grouped,
    ungrouped,
    vector_cosines,
    vector_inner_products,
)
from merganser.operators.coefficients import mean_weights, ratio_of

LINEAR = 1 - 1e-12  # of the cosine: above it the arc cannot be told from the line


@method(
    on_models=True,
    most_tasks=2,
    family="spherical",
    formula=r"\frac{\sin((1 - t) \theta)}{\sin \theta} \Delta_1 + \frac{\sin(t \theta)}{\sin \theta} \Delta_2, "
    r"\quad \cos \theta = \frac{\langle \Delta_1, \Delta_2 \rangle}{\lVert \Delta_1 \rVert \lVert \Delta_2 \rVert}, "
    r"\quad t = \frac{\lambda_2}{\lambda_1 + \lambda_2}",
    paper="none (mergekit's, described in its guide to merge methods)",
    law="of task vectors of one length the merge has that length too",
    weighted=False,
)
def nuslerp(
    layers: LayerSource,
    *,
    of: Literal["deltas", "models"] = "deltas",
    granularity: Granularity = "parameter",
    coefficients: Weights = None,
) -> Callable[[LayerDeltas], Tensor]:
    """Go from one task vector to the other on the arc between them; `coefficients` say how far.

    They are relative to each other: 1 and 3 is three quarters of the way to the second. With `of: models` the arc is
    between the models' own weights, whatever their base. `granularity` row or column: each row or column of a matrix
    has an angle of its own. A vector of zeros is at a right angle to every other.
    """
    weights = mean_weights(layers.tasks, coefficients)

    def merge(layer: LayerDeltas) -> Tensor:
        deltas = grouped(layer.deltas, granularity)
        start = base_vectors(layer, granularity) if of == "models" else None
        ratio = ratio_of(weights(layer.norms))
        shares = arc_shares(vector_cosines(vector_inner_products(deltas, start)), ratio, LINEAR)
        return ungrouped(combined(deltas, shares, start), layer.shape, granularity)

    return merge
