"""AdaMerging: a weighted sum of task vectors whose coefficients were learned from unlabelled data."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning.applying import applied
from merganser.learning.learners import adamerging as learner
from merganser.merging.method import method


@method(
    family="learned",
    formula=r"\sum_t \lambda_{t,l} \Delta_{t,l}, \quad "
    r"\lambda = \mathrm{argmin} \sum_t \mathbb{E}_{x \sim t} H\big(p_{W_0 + \sum_j \lambda_j \Delta_j}(y \mid x)\big)",
    paper="Yang et al., ICLR 2024, arXiv:2310.02575",
    law="before the first step it is task arithmetic at the starting coefficient",
    involvement="TTA",
    efficiency="Low",
    learned=True,
    weighted=False,
)
def adamerging(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Add the tasks' deltas with learned coefficients: those of the lowest entropy of the predictions.

    They are learned by the stage `learn`: a coefficient per task (`granularity: task`) or per task and parameter
    (`layer`). With `plus_plus` the deltas are trimmed first, and entries without the elected sign are zero.
    """
    return applied(layers, learner)
