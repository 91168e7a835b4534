"""NAN: task arithmetic with coefficients from the inverse norms of the models' weights."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method
from merganser.operators.coefficients import norm_coefficients
from merganser.operators.sums import scaled_sum


@method(
    family="arithmetic",
    formula=r"\frac{T}{2} \sum_t \frac{1 / \lVert W_t \rVert_F}{\sum_j 1 / \lVert W_j \rVert_F} \Delta_t",
    paper="Si et al., 2025, arXiv:2505.16148",
    law="models of equal norm are added and halved",
    weighted=False,
    by_rows=True,
)
def nan(layer: LayerDeltas) -> Tensor:
    """Add the tasks' deltas, each times T/2 times its share of the inverse norms of the fine-tuned weights.

    The same coefficients go before any other method as `coefficients: inverse_norm`.
    """
    return scaled_sum(layer.deltas, 1.0, norm_coefficients(layer.norms))
