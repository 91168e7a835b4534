"""PCB-Merging: weigh each task's entries by how they compete within the task and among the tasks."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.select import cut_of
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.competition import Softmaxes, balanced_mean, scores, softmaxes
from merganser.operators.passes import Stacks

TIED = 1e-12  # relative: scores this close differ by the rounding of their sums, which the order of the tasks decides


def least_scores(layers: LayerSource, known: Softmaxes, ratio: float) -> Tensor:
    """Find the level (T, 1) above which a task's scores are in the share `ratio` of its largest, in float64."""
    cut = cut_of(Stacks(layers), partial(count_of, ratio), partial(scores, known=known))
    return torch.tensor(cut, dtype=torch.float64).mul_(1 - TIED).unsqueeze(1)


@method(
    family="sparse",
    formula=r"\lambda \frac{\sum_t m_t \odot \beta_t \odot \Delta_t}{\sum_t m_t \odot \beta_t}, "
    r"\quad \beta_t = \mathrm{softmax}(T\, \mathrm{norm}(\Delta_t \odot \Delta_t)) "
    r"\odot \sum_j \mathrm{softmax}(\mathrm{norm}(\Delta_t \odot \Delta_j)), "
    r"\quad m_t = \mathbb{1}[\beta_t \in \mathrm{top}_r(\beta_t)]",
    involvement="VDI",
    efficiency="Medium",
    paper="Du et al., NeurIPS 2024, arXiv:2410.02396",
    law="permuting the tasks changes nothing; one coefficient for all tasks is a scaling",
    ours=("ratio", "scaling"),
)
def pcb(
    layers: LayerSource, *, ratio: PositiveFraction = 0.1, scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Average the tasks' deltas, weighed by their scores, where a score is among the `ratio` largest of its task.

    Scores are softmaxes over the whole vector; norm brings products to [0, 1] by their least and largest, and to 0
    where all are equal, as for a task that changed nothing. Of entries with one score all are kept or none.
    """
    known = softmaxes(layers)
    least = least_scores(layers, known, ratio)

    def weighed(block: Tensor) -> Tensor:
        found = scores(block, known)
        kept = found.mul_(found >= least.to(found.device))
        return scaling * balanced_mean(block, kept)

    return lambda layer: by_blocks(weighed, layer.deltas, layer.dtype)
