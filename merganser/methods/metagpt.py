"""MetaGPT: add the task vectors with the coefficients that keep all tasks' losses low, in closed form."""

from collections.abc import Callable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Scaling, method
from merganser.operators.angles import squared_lengths
from merganser.operators.sums import scaled_sum


@method(
    family="arithmetic",
    formula=r"\lambda \sum_t \frac{\lVert \tau_t \rVert^2}{\sum_j \lVert \tau_j \rVert^2} \Delta_t, "
    r"\quad \tau_t \text{: all deltas of task } t",
    paper="Zhou et al., EMNLP 2024, arXiv:2406.11385",
    law="task vectors of one length are averaged; one task is its own model",
    ours=("scaling",),
)
def metagpt(layers: LayerSource, *, scaling: Scaling = 1.0) -> Callable[[LayerDeltas], Tensor]:
    """Add the tasks' deltas, each by its share in the squared lengths of all task vectors.

    Near the base a model is nearly linear in its weights, and task vectors are nearly orthogonal: then these shares
    minimise the sum of the tasks' squared distances from their own models.
    """
    squares = torch.stack(list(layers.map(lambda layer: squared_lengths(layer.deltas).cpu()))).sum(0)
    shares = (squares / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)).tolist()
    return lambda layer: scaled_sum(layer.deltas, scaling, shares)
