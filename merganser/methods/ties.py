"""TIES: trim, elect a sign, average those who agree."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Densities, Scaling, method, spaced
from merganser.operators.ties import AGREEMENTS, Agreement, cut_and_winner, elect_sign, trim


@method(
    family="sparse",
    formula=r"\frac{\lambda}{|A|} \sum_{t \in A} \mathrm{trim}(\Delta_t), "
    r"\quad A = \{t : \mathrm{sgn}\, \mathrm{trim}(\Delta_t) = \mathrm{sgn} \sum_j \mathrm{trim}(\Delta_j)\}",
    involvement="VDI",
    paper="Yadav et al., NeurIPS 2023, arXiv:2306.01708",
    law="one task at density 1 is its own model; identical models give that model's trimmed delta",
    by_rows=True,
    searched={"scaling": spaced(0.8, 2.5, 0.1)},
)
def ties(
    layers: LayerSource, *, density: Densities = 0.2, averaging: Agreement = "disjoint", scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Keep each task's largest entries, elect a sign per entry, average the tasks that agree.

    `density` is a share of the whole task vector; what equals the least that is kept is kept too. An entry whose
    elected sign is 0 takes the sign that wins the vector. `averaging: sum` adds those that agree up, as FusionBench
    does.
    """
    cut, winner = cut_and_winner(layers, density)
    combine = AGREEMENTS[averaging]

    def merge(layer: LayerDeltas) -> Tensor:
        trimmed = trim(layer.deltas, cut)
        sign = elect_sign(trimmed, winner)
        return scaling * combine(trimmed, sign)

    return merge
