"""Fisher merging: the mean of the models, entry by entry, by how sure each is of the entry."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Weights, method
from merganser.operators.coefficients import mean_weights
from merganser.operators.information import fisher_norms, fisher_of, mean_by, normalised


@method(
    statistics=("fisher",),
    family="statistics",
    formula=r"\frac{\sum_t \lambda_t \hat F_t \odot \Delta_t}{\sum_t \lambda_t \hat F_t}, "
    r"\quad \hat F_t = \max\!\left(\frac{F_t}{\lVert F_t \rVert_2}, 10^{-6}\right)",
    paper="Matena & Raffel, NeurIPS 2022, arXiv:2111.09832",
    law="equal information gives the average; a task's information times any factor changes nothing",
    involvement="VDI",
    efficiency="Medium",
    weighted=False,
    copies=6,
)
def fisher(layers: LayerSource, *, coefficients: Weights = None) -> Callable[[LayerDeltas], Tensor]:
    """Average the models entry by entry, weighted by each model's own diagonal Fisher information.

    Each task's information is divided by its norm over the whole vector, so that no task rules by its scale, then
    raised to 1e-6, so that an entry that no task is sure of is averaged. `coefficients` are the weights lambda of the
    mean, relative to each other: a task with 0 has no say, and is not pulled to the base.
    """
    weights, norms = mean_weights(layers.tasks, coefficients), fisher_norms(layers)

    def merge(layer: LayerDeltas) -> Tensor:
        return mean_by(layer.deltas, normalised(fisher_of(layer), norms), weights(layer.norms))

    return merge
