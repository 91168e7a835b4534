"""RegMean: the linear map that comes nearest to every task's own on that task's inputs."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.least_squares import nearest_map, shrunk
from merganser.operators.vectors import scaled_mean


@method(
    reads="statistics",
    statistics=("gram",),
    family="statistics",
    formula=r"\lambda \Bigl(\sum_t \Delta_t \hat G_t\Bigr) \Bigl(\sum_t \hat G_t\Bigr)^{-1}, "
    r"\quad \hat G_t = a \, G_t + (1 - a) \operatorname{diag} G_t",
    paper="Jin et al., ICLR 2023, arXiv:2212.09849",
    law="equal inputs give the average; ratio 1 gives the least squares solution",
    cost="linear system",
    involvement="VDI",
    efficiency="Medium",
    vectors=scaled_mean,
)
def regmean(layer: LayerDeltas, *, ratio: Fraction = 0.9, scaling: Scaling = 1.0) -> Tensor:
    """Merge each linear map so that on the tasks' own inputs it is nearest to what the tasks' own maps give.

    G_t is the mean of x x^T over the inputs x of task t's map. `ratio` is a, what is kept of G off its diagonal: 0.9,
    and 0.95 for CLIP in the paper. A map of which no inputs were seen is averaged, as all other parameters are.
    """
    gram, side = layer.statistics.gram, layer.statistics.side
    if gram is None:
        return scaled_mean(layer, scaling=scaling)
    inputs_last = layer.deltas if side == "columns" else layer.deltas.mT
    merged = scaling * nearest_map(inputs_last, shrunk(gram, ratio))
    return merged if side == "columns" else merged.mT
