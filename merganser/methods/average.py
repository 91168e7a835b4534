"""Averaging the models' weights."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import SignedWeights, method
from merganser.operators.coefficients import mean_weights
from merganser.operators.sums import scaled_sum


@method(
    family="arithmetic",
    formula=r"\frac{1}{\sum_j \lambda_j} \sum_t \lambda_t \Delta_t",
    paper="Wortsman et al., ICML 2022, arXiv:2203.05482",
    law="it is task arithmetic with a scaling of 1/T; coefficients times any factor change nothing",
    weighted=False,
    by_rows=True,
)
def average(layers: LayerSource, *, coefficients: SignedWeights = None) -> Callable[[LayerDeltas], Tensor]:
    """Average the models; `coefficients` are the weights lambda of the mean, relative to each other, of any sign."""
    weights = mean_weights(layers.tasks, coefficients)

    def merge(layer: LayerDeltas) -> Tensor:
        shares = weights(layer.norms)
        return scaled_sum(layer.deltas, 1 / sum(shares), shares)

    return merge
