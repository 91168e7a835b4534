"""The Karcher mean: the direction nearest to those of all models' weights, parameter by parameter."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.angles import base_of, combined, grouped, products, ungrouped
from merganser.operators.coefficients import mean_weights
from merganser.operators.karcher import karcher_shares


@method(
    on_models=True,
    family="spherical",
    formula=r"\Bigl(\sum_t \lambda_t \lVert W_t \rVert\Bigr) u - W_0, "
    r"\quad u = \operatorname{argmin}_{\lVert u \rVert = 1} \sum_t \lambda_t \, \angle(u, W_t)^2, "
    r"\quad \sum_t \lambda_t = 1",
    paper="Karcher, Comm. Pure Appl. Math. 1977; of models' weights in mergekit, arXiv:2403.13257",
    law="two models of one length: the middle of the arc between them; the logarithms at the mean add up to zero",
    involvement="NDI",
    efficiency="High",
    weighted=False,
)
def karcher(layers: LayerSource, *, coefficients: Weights = None) -> Callable[[LayerDeltas], Tensor]:
    """Average the directions of the models' weights on the sphere, and their lengths apart.

    `coefficients` are the weights lambda of the mean, relative to each other. The base's place decides nothing. It is
    found to rounding: the iteration takes place among the models' inner products.
    """
    weights = mean_weights(layers.tasks, coefficients)

    def merge(layer: LayerDeltas) -> Tensor:
        deltas, base = grouped(layer.deltas), base_of(layer)
        inner = products(deltas, base).squeeze(2)
        shares = karcher_shares(inner, weights(layer.norms)).unsqueeze(1)
        return ungrouped(combined(deltas, shares, base), layer.shape)

    return merge
