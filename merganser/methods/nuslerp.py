"""NuSLERP: a point on the arc between two task vectors, or two models, whole parameters or each row or column."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import (
    Granularity,
    VectorsOf,
    arc_shares,
    combined,
    inner_products,
    ungrouped,
    vector_cosines,
    vectors_of,
)
from merganser.operators.coefficients import mean_weights, ratio_of

LINEAR = 1 - 1e-12  # of the cosine: above it the arc cannot be told from the line


@method(
    on_models=lambda of, **_: of == "models",
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
    parameter: LayerSource,
    *,
    of: VectorsOf = "deltas",
    granularity: Granularity = "parameter",
    coefficients: Weights = None,
) -> Callable[[LayerDeltas], Tensor]:
    """Go from one task vector to the other on the arc between them; `coefficients` say how far.

    They are relative to each other: 1 and 3 is three quarters of the way to the second. With `of: models` the arc is
    between the models' own weights, whatever their base. `granularity` row or column: each row or column of a matrix
    has an angle of its own. A vector of zeros is at a right angle to every other.
    """
    weights, inner = mean_weights(parameter.tasks, coefficients), inner_products(parameter, granularity, of)

    def merge(piece: LayerDeltas) -> Tensor:
        vectors, start = vectors_of(piece, granularity, of)
        shares = arc_shares(vector_cosines(inner(piece)), ratio_of(weights(piece.norms)), LINEAR)
        return ungrouped(combined(vectors, shares, start), piece.shape, granularity)

    return merge
