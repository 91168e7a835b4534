"""AdaRank: the singular components of each task, kept or dropped as was learned from unlabelled data."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerSource
from merganser.learning.applying import applied
from merganser.learning.learners import adarank as learner
from merganser.merging.method import method


@method(
    reads="svd",
    family="learned",
    formula=r"\sum_t \lambda_{t,l} \sum_i b_{ti}\, \sigma_{ti} u_{ti} v_{ti}^\top, \quad b_{ti} = [m_{ti} > 0]",
    paper="Lee et al., 2025, arXiv:2503.22178",
    law="with every singular value kept it is task arithmetic",
    cost="svd",
    involvement="TTA",
    efficiency="Low",
    learned=True,
    weighted=False,
)
def adarank(layers: LayerSource) -> Callable[[LayerFactors | LayerDeltas], Tensor]:
    """Add each task's kept singular components with learned coefficients; the stage `learn` chose both.

    It needs all singular vectors. Vectors are added whole.
    """
    return applied(layers, learner)
