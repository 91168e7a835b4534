"""Averaging the models' weights."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method
from merganser.operators.sums import scaled_sum


@method(
    reads="deltas",
    family="arithmetic",
    formula=r"\frac{1}{T} \sum_t \Delta_t",
    involvement="NDI",
    efficiency="High",
    paper="Wortsman et al., ICML 2022, arXiv:2203.05482",
    law="it is task arithmetic with a scaling of 1/T",
    cost="elementwise",
    vectors="alike",
)
def average(layer: LayerDeltas) -> Tensor:
    """Average the tasks' deltas."""
    return scaled_sum(layer.deltas, 1 / len(layer.tasks))
