"""Recalibration: measure the batch-normalisation statistics of a merged model again."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.learning.recalibration import Recalibration
from merganser.merging.method import method
from merganser.methods.base import base_of


@method(
    family="learned",
    formula=r"0, \quad \mu = \mathbb{E}_{x \sim D}\, h_M(x), \quad \sigma^2 = \operatorname{Var}_{x \sim D} h_M(x)",
    paper="Jordan et al., ICLR 2023, arXiv:2211.08403",
    law="weights stay; the statistics are those of the merged model's own activations",
    efficiency="High",
    involvement="VDI",
    learner=Recalibration(),
    measured=base_of,
)
def recalibrate(layer: LayerDeltas) -> Tensor:
    """Keep a merged model's weights, and measure its batch-normalisation statistics again.

    The mean of the tasks' running statistics does not fit the activations h_M of a merged CNN. The stage `learn`
    measures their mean and variance, channel by channel, on `examples` pictures of each task's validation split. The
    layers are in train mode with `momentum=None`, so batches count equally, and a batch has up to `batch_size` pictures
    of each task. Labels are not read. The entry's `learned` is of `differences/NAME`, which names the merge.

    REPAIR's authors reset statistics like this. A model without batch normalisation, which they rescale, is refused.
    """
    return base_of(layer)
