"""KnOTS: merge the tasks' right factors in the left basis that their joint SVD gives them."""

from typing import Any, NamedTuple

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank, LayerSource
from merganser.merging.method import PositiveFraction, Rate, Scaling, method
from merganser.operators import inner as inner_merge
from merganser.operators.inner import Inner
from merganser.operators.joint import JointLayers, joint_layers


class Joint(NamedTuple):
    """The layers in joint coordinates, and what the inner merge must know of all of them."""

    layers: JointLayers
    whole: inner_merge.WholeVector


def survey(layers: LayerSource, *, inner: Inner, density: float, drop_rate: float, **_: Any) -> Joint:
    """Decompose each matrix, and learn of the whole joint space what the inner merge takes."""
    space = joint_layers(layers)
    return Joint(space, inner_merge.survey(space, inner, density=density, drop_rate=drop_rate))


@method(
    reads="deltas",
    family="joint",
    formula=r"U\, \mathrm{inner}(S V_1^\top, \ldots, S V_T^\top), "
    r"\quad [\Delta_1 \cdots \Delta_T] = U S [V_1^\top \cdots V_T^\top]",
    involvement="VDI",
    efficiency="Medium",
    paper="Stoica et al., ICLR 2025, arXiv:2410.19735",
    cost="joint svd",
    vectors="alike",
    low_rank=True,
    joint="rows",
    prepare=survey,
    ours=("density", "drop_rate", "scaling"),
)
def knots(
    layer: LayerDeltas | LayerLowRank,
    *,
    inner: Inner = "ties",
    density: PositiveFraction = 0.2,
    drop_rate: Rate = 0.8,
    scaling: Scaling = 1.0,
) -> Tensor:
    """Merge S V_i of the joint SVD [D_1 .. D_T] = U S [V_1 .. V_T] by `inner`, and multiply by U.

    `density` is what ties keeps of each task's whole joint vector, `drop_rate` what dare and dare_ties drop of it.
    Vectors are merged by `inner` as they are.
    """
    space: Joint = layer.prepared
    if isinstance(layer, LayerDeltas) and layer.kind == "vector":
        return inner_merge.scaled(layer, space.whole, scaling)
    merged = inner_merge.scaled(space.layers.layer(layer.name), space.whole, scaling)
    return space.layers.bases.get(layer.name).mT @ merged
