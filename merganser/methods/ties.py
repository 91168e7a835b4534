"""TIES: trim, elect a sign, average those who agree."""

from typing import Any

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators import inner


def survey(layers: LayerSource, *, density: float, **_: Any) -> inner.WholeVector:
    """Find the cuts, and the sign that wins the vector."""
    return inner.survey(layers, "ties", density=density)


@method(
    reads="deltas",
    family="sparse",
    formula=r"\frac{\lambda}{|A|} \sum_{t \in A} \mathrm{trim}(\Delta_t), "
    r"\quad A = \{t : \mathrm{sgn}\, \mathrm{trim}(\Delta_t) = \mathrm{sgn} \sum_j \mathrm{trim}(\Delta_j)\}",
    involvement="VDI",
    efficiency="High",
    paper="Yadav et al., NeurIPS 2023, arXiv:2306.01708",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
)
def ties(layer: LayerDeltas, *, density: PositiveFraction = 0.2, scaling: Scaling = 1.0) -> Tensor:
    """Keep each task's largest entries, elect a sign per entry, average the tasks that agree.

    `density` is a share of the whole task vector. An entry whose elected sign is 0 takes the sign that wins the vector.
    """
    return inner.scaled(layer, layer.prepared, scaling)
