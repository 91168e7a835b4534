"""Concrete task arithmetic and Concrete AdaMerging: task vectors under a mask that was learned from unlabelled data."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning.applying import applied
from merganser.learning.learners import concrete as learner
from merganser.merging.method import method


@method(
    family="learned",
    formula=r"\frac{m}{\bar m} \odot \sum_t \lambda_{t,l} \Delta_{t,l}, \quad m = \sigma(x / \tau)",
    paper="Tang et al., 2023, arXiv:2312.06173",
    law="with equal logits, as before the first step, it is the method inside",
    involvement="TTA",
    efficiency="Low",
    learned=True,
    weighted=False,
)
def concrete(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Mask the sum of the tasks' deltas, entry by entry, by the subspace in which predictions are surest.

    The stage `learn` finds a logit per entry; the mask is divided by its mean over the whole vector. With
    `inner: adamerging` it then finds a coefficient per task and parameter; otherwise all of them are `scaling`.
    """
    return applied(layers, learner)
