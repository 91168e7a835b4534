"""The Karcher mean of directions: the point on the sphere that lies nearest to all of them, by squared angles.

All points that the iteration passes lie in the span of the directions, so it works on their shares: what is read of the
vectors is their inner products. Legend: T tasks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from merganser.operators.angles import cosines, lengths

STEPS = 100
CLOSE = 1e-12  # the length of a step after which the mean is found
NOWHERE = 1e-6  # the length of a mean of unit vectors that has no direction


def karcher_shares(inner: Tensor, weights: Sequence[float]) -> Tensor:
    """Return what each vector contributes to their Karcher mean, from the inner products (T, T); in float64 (T).

    The mean's length is the vectors' mean length. A vector of zeros has a length but no direction. Directions that
    cancel have no mean: then the shares are those of the vectors' own mean.

    >>> karcher_shares(torch.eye(2).double(), [1.0, 1.0])
    tensor([0.7071, 0.7071], dtype=torch.float64)
    """
    own = torch.tensor(weights, dtype=torch.float64, device=inner.device)
    own = own / own.sum()
    sizes, cosine = lengths(inner.unsqueeze(2)).squeeze(1), cosines(inner.unsqueeze(2)).squeeze(2)
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
