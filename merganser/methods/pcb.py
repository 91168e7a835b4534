"""PCB-Merging: weigh each task's entries by how they compete within the task and among the tasks."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.select import whole_cut
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.competition import Softmaxes, balanced_mean, scores, softmaxes
from merganser.operators.streams import Stacks

TIED = 1e-12  # relative: scores this close differ by the rounding of their sums, which the order of the tasks decides


@dataclass(frozen=True)
class WholeVector:
    """What PCB must know of all layers: the softmaxes, and the least score that each task keeps."""

    softmaxes: Softmaxes
    thresholds: tuple[float, ...]  # T


def survey(layers: LayerSource, *, ratio: float, **_: Any) -> WholeVector:
    """Find the products' ranges, the softmaxes' sums, and the thresholds, which takes two readings."""
    known = softmaxes(layers)
    cut = whole_cut(Stacks(layers), partial(count_of, ratio), partial(scores, known=known))
    return WholeVector(known, tuple(torch.tensor(cut.patterns).view(torch.float64).tolist()))


@method(
    reads="deltas",
    family="sparse",
    formula=r"\lambda \frac{\sum_t m_t \odot \beta_t \odot \Delta_t}{\sum_t m_t \odot \beta_t}, "
    r"\quad \beta_t = \mathrm{softmax}(T\, \mathrm{norm}(\Delta_t \odot \Delta_t)) "
    r"\odot \sum_j \mathrm{softmax}(\mathrm{norm}(\Delta_t \odot \Delta_j)), "
    r"\quad m_t = \mathbb{1}[\beta_t \in \mathrm{top}_r(\beta_t)]",
    involvement="VDI",
    efficiency="Medium",
    paper="Du et al., NeurIPS 2024, arXiv:2410.02396",
    cost="elementwise",
    vectors="alike",
    prepare=survey,
    ours=("ratio", "scaling"),
)
def pcb(layer: LayerDeltas, *, ratio: PositiveFraction = 0.1, scaling: Scaling = 1.0) -> Tensor:
    """Average the tasks' deltas, weighed by their scores, where a score is among the `ratio` largest of its task.

    Scores are softmaxes over the whole vector; norm brings products to [0, 1] by their least and largest, and to 0
    where all are equal, as for a task that changed nothing. Of entries with one score all are kept or none.
    """
    whole: WholeVector = layer.prepared
    least = torch.tensor(whole.thresholds, dtype=torch.float64, device=layer.deltas.device).mul_(1 - TIED).unsqueeze(1)

    def weighed(block: Tensor) -> Tensor:
        found = scores(block, whole.softmaxes)
        return balanced_mean(block, found.mul_(found >= least)).mul_(scaling)

    return by_blocks(weighed, layer.deltas, layer.dtype)
