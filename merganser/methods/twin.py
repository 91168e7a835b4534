"""Twin-Merging: a shared model, and of each task as much of its own as an example looks like it."""

from collections.abc import Callable

from merganser.at_run_time.additions import router
from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, method
from merganser.operators.coefficients import triples_kept
from merganser.overlays.parts import Parts, low_rank_parts


@method(
    reads="differences",
    family="routed",
    formula=r"\sum_t g_t(x)\, \mathrm{SVD}_k(W_t - W_{merged}), \quad g = \mathrm{softmax}(A h(x) + b)",
    involvement="VDI",
    paper="Twin-Merging, NeurIPS 2024, arXiv:2406.15479",
    law="one task alone at full rank is its own model; equal shares give the average at any scaling",
    cost="svd",
    ours=("rank_fraction",),
    at_run_time=router,
    rank_fraction=lambda tasks, *, rank_fraction: rank_fraction,
)
def twin(layers: LayerSource, *, rank_fraction: PositiveFraction = 0.1) -> Callable[[LayerFactors], Parts]:
    """Keep the leading triples of each task's difference to a merged model, and a router that says how much of each.

    The router is a multinomial logistic regression on the merged model's features of validation data, which the stage
    `route` fits; an entry reads `routers/NAME` (`of: differences/NAME`, by the paper from task arithmetic at 0.3).
    Examples are evaluated without their task's label; each task's class head is given. Vectors are kept whole.
    """
    return lambda layer: low_rank_parts(layer, triples_kept(layer, rank_fraction))
