"""WEMoE: task arithmetic, but for the MLPs, in which each example takes as much of each task as a router says."""

from collections.abc import Callable, Mapping

from torch import Tensor

from merganser.at_run_time.additions import block_routers
from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning import Learner, Values, learned_by
from merganser.learning.settings import RoutingSettings
from merganser.merging.method import method
from merganser.operators.sums import scaled_sum
from merganser.operators.vectors import whole
from merganser.operators.weight_ensembling import first_router, router_tensors
from merganser.overlays.parts import Parts


def first_routers(widths: Mapping[str, int], tasks: int, settings: RoutingSettings, seed: int) -> Values:
    """Return routers that give every example `scaling` of every task: together that is task arithmetic."""
    values: Values = {}
    for block, width in widths.items():
        values |= router_tensors(block, first_router(width, tasks, settings.scaling, seed, block))
    return values


@method(
    family="routed",
    formula=r"\begin{cases} \sum_t w_{t}(x)\, \Delta_t & \text{in the MLP of a block}, \quad "
    r"w(x) = \frac{1}{N} \sum_n \big(A_2\, \mathrm{relu}(A_1 h_n(x) + b_1) + b_2\big) \\ "
    r"\lambda \sum_t \Delta_t & \text{elsewhere} \end{cases}",
    involvement="TTA",
    efficiency="Medium",
    paper="WEMoE, ICML 2024, arXiv:2402.00433",
    law="before the first step it is task arithmetic; an example's scores do not depend on its batch",
    learner=Learner(RoutingSettings, routers=first_routers),
    at_run_time=block_routers,
)
def wemoe(layers: LayerSource) -> Callable[[LayerDeltas], Tensor | Parts]:
    """Keep the tasks' vectors of the blocks' MLPs, and a learned router a block; merge the rest by task arithmetic.

    The stage `learn` finds the routers by the entropy of the predictions; before the first step each gives `scaling`
    to every task, which is task arithmetic. An example (a picture, a text) is routed by the mean over its own tokens,
    in training too. It is evaluated without its task's label; each task's class head is given. With its label
    (`known`) it takes its own task's vectors whole, and no others, in the MLPs. Families whose blocks' MLPs are known
    can do this (docs/families.md).
    """
    result = learned_by(layers, "wemoe")
    mixed = {name for names in result.blocks.values() for name in names}

    def merge(layer: LayerDeltas) -> Tensor | Parts:
        if layer.name in mixed:
            return whole(layer)
        return scaled_sum(layer.deltas, result.settings["scaling"])

    return merge
