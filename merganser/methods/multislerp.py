"""Multi-SLERP: the mean direction of several task vectors, or models, at their mean length.

mergekit projects the directions onto the space that touches the sphere at their mean, averages them there, and goes
back. They average to nothing there: the point from which they are seen is their mean. Legend: T tasks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import (
    Granularity,
    VectorsOf,
    combined,
    inner_products,
    lengths,
    ungrouped,
    vector_cosines,
    vectors_of,
)
from merganser.operators.coefficients import mean_weights

NOWHERE = 1e-8  # the length of a mean of unit vectors that has no direction


@method(
    on_models=lambda of, **_: of == "models",
    family="spherical",
    formula=r"\Bigl(\sum_t \lambda_t \lVert \Delta_t \rVert\Bigr) \frac{m}{\lVert m \rVert}, "
    r"\quad m = \sum_t \lambda_t \frac{\Delta_t}{\lVert \Delta_t \rVert}, \quad \sum_t \lambda_t = 1",
    paper="none (Goddard's, in mergekit)",
    law="the merge is as long as the vectors are on average; of two of one length it is nuslerp's middle",
    weighted=False,
)
def multislerp(
    parameter: LayerSource,
    *,
    of: VectorsOf = "deltas",
    granularity: Granularity = "parameter",
    coefficients: Weights = None,
) -> Callable[[LayerDeltas], Tensor]:
    """Average the directions of the task vectors, and give the mean direction their mean length.

    `coefficients` are the weights lambda of both means, relative to each other. With `of: models` the vectors are the
    models' own weights, whatever their base. Each parameter, or each row or column, is one vector. Directions
    that cancel have no mean: then the vectors themselves are averaged.
    """
    weights, inner = mean_weights(parameter.tasks, coefficients), inner_products(parameter, granularity, of)

    def merge(piece: LayerDeltas) -> Tensor:
        vectors, start = vectors_of(piece, granularity, of)
        shares = mean_direction_shares(inner(piece), weights(piece.norms))
        return ungrouped(combined(vectors, shares, start), piece.shape, granularity)

    return merge


def mean_direction_shares(inner: Tensor, weights: Sequence[float]) -> Tensor:
    """Return what each vector contributes to their mean direction at their mean length, in float64 (T, G).

    `inner` are their inner products (T, T, G). A vector of zeros has a length, but no direction.

    >>> mean_direction_shares(torch.diag(torch.tensor([4.0, 4.0]).double()).unsqueeze(2), [1.0, 1.0]).flatten()
    tensor([0.7071, 0.7071], dtype=torch.float64)
    """
    own = torch.tensor(weights, dtype=torch.float64, device=inner.device)
    own = (own / own.sum()).unsqueeze(1)
    sizes = lengths(inner)
    directed = own * (sizes > 0)
    length = torch.einsum("ig,ijg,jg->g", directed, vector_cosines(inner), directed).clamp(min=0).sqrt()
    mean = (own * sizes).sum(0) * directed / torch.where(sizes > 0, sizes, 1.0) / length.clamp(min=NOWHERE)
    return torch.where(length > NOWHERE, mean, own.expand_as(mean))
