"""The Karcher mean: the direction nearest to those of all models' weights, parameter by parameter.

All points that the iteration passes lie in the span of the directions, so it works on their shares: what is read of the
vectors is their inner products. Legend: T tasks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import (
    combined,
    inner_products,
    lengths,
    ungrouped,
    vector_cosines,
    vectors_of,
)
from merganser.operators.coefficients import mean_weights

STEPS = 100
CLOSE = 1e-12  # the length of a step after which the mean is found
NOWHERE = 1e-6  # the length of a mean of unit vectors that has no direction


@method(
    on_models=True,
    family="spherical",
    formula=r"\Bigl(\sum_t \lambda_t \lVert W_t \rVert\Bigr) u - W_0, "
    r"\quad u = \operatorname{argmin}_{\lVert u \rVert = 1} \sum_t \lambda_t \, \angle(u, W_t)^2, "
    r"\quad \sum_t \lambda_t = 1",
    paper="Karcher, Comm. Pure Appl. Math. 1977; of models' weights in mergekit, arXiv:2403.13257",
    law="two models of one length: the middle of the arc between them; the logarithms at the mean add up to zero",
    weighted=False,
)
def karcher(parameter: LayerSource, *, coefficients: Weights = None) -> Callable[[LayerDeltas], Tensor]:
    """Average the directions of the models' weights on the sphere, and their lengths apart.

    `coefficients` are the weights lambda of the mean, relative to each other. The base's place decides nothing. It is
    found to rounding: the iteration takes place among the models' inner products.
    """
    weights, inner = mean_weights(parameter.tasks, coefficients), inner_products(parameter, of="models")

    def merge(piece: LayerDeltas) -> Tensor:
        deltas, base = vectors_of(piece, of="models")
        shares = karcher_shares(inner(piece).squeeze(2), weights(piece.norms)).unsqueeze(1)
        return ungrouped(combined(deltas, shares, base), piece.shape)

    return merge


def karcher_shares(inner: Tensor, weights: Sequence[float]) -> Tensor:
    """Return what each vector contributes to their Karcher mean, from the inner products (T, T); in float64 (T).

    The mean's length is the vectors' mean length. A vector of zeros has a length but no direction. Directions that
    cancel have no mean: then the shares are those of the vectors' own mean.

    >>> karcher_shares(torch.eye(2).double(), [1.0, 1.0])
    tensor([0.7071, 0.7071], dtype=torch.float64)
    """
    own = torch.tensor(weights, dtype=torch.float64, device=inner.device)
    own = own / own.sum()
    sizes, cosine = lengths(inner.unsqueeze(2)).squeeze(1), vector_cosines(inner.unsqueeze(2)).squeeze(2)
    directed = own * (sizes > 0)
    shares = _unit(directed / directed.sum(), cosine)
    if shares is None:
        return own
    for _ in range(STEPS):
        step = _towards(shares, directed / directed.sum(), cosine)
        length = float((step @ cosine @ step).clamp(min=0).sqrt())
        if length < CLOSE:
            break
        angle = torch.tensor(length, dtype=torch.float64)
        moved = _unit(float(angle.cos()) * shares + float(angle.sin()) / length * step, cosine)
        assert moved is not None, "a point of the sphere has a direction"
        shares = moved
    return (own @ sizes) * shares / torch.where(sizes > 0, sizes, 1.0)


def _unit(shares: Tensor, cosine: Tensor) -> Tensor | None:
    """Scale shares of unit vectors to a sum of length 1; None where there is no direction."""
    length = float((shares @ cosine @ shares).clamp(min=0).sqrt())
    return shares / length if length > NOWHERE else None


def _towards(shares: Tensor, weights: Tensor, cosine: Tensor) -> Tensor:
    """Return the mean of the ways from a point to the directions, in the plane that touches the sphere there."""
    beside = (cosine @ shares).clamp(-1, 1)
    sine = (1 - beside**2).sqrt()
    pull = weights * torch.where(sine > NOWHERE, beside.acos() / sine, (beside > 0).double())
    return pull - (pull @ beside) * shares
