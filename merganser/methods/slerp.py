"""SLERP: a point on the arc between two models' weights, parameter by parameter."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import (
    arc_shares,
    combined,
    inner_products,
    ungrouped,
    vector_cosines,
    vectors_of,
)
from merganser.operators.coefficients import mean_weights, ratio_of

LINEAR = 0.9995  # of the cosine: above it the line is taken, as wherever models are merged by slerp


@method(
    on_models=True,
    most_tasks=2,
    family="spherical",
    formula=r"\frac{\sin((1 - t) \theta)}{\sin \theta} W_1 + \frac{\sin(t \theta)}{\sin \theta} W_2 - W_0, "
    r"\quad \cos \theta = \frac{\langle W_1, W_2 \rangle}{\lVert W_1 \rVert \lVert W_2 \rVert}, "
    r"\quad t = \frac{\lambda_2}{\lambda_1 + \lambda_2}",
    paper="Shoemake, SIGGRAPH 1985; of models' weights in mergekit, arXiv:2403.13257",
    law="models of one length and an angle of at least 2 degrees: so is the merge, t of the angle from the first",
    weighted=False,
)
def slerp(parameter: LayerSource, *, coefficients: Weights = None) -> Callable[[LayerDeltas], Tensor]:
    """Go from one model's weights to the other's on the arc between them; `coefficients` say how far.

    They are relative to each other: 1 and 3 is three quarters of the way to the second model. The base's place
    decides nothing. If the cosine of a parameter's angle is beyond 0.9995, as between most models fine-tuned from
    one base, the way is the line.
    """
    weights, inner = mean_weights(parameter.tasks, coefficients), inner_products(parameter, of="models")

    def merge(piece: LayerDeltas) -> Tensor:
        deltas, base = vectors_of(piece, of="models")
        shares = arc_shares(vector_cosines(inner(piece)), ratio_of(weights(piece.norms)), LINEAR)
        return ungrouped(combined(deltas, shares, base), piece.shape)

    return merge
