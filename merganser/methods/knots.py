"""KnOTS: merge the tasks' right factors in the left basis that their joint SVD gives them."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank, LayerSource
from merganser.merging.method import Densities, Rates, Scaling, method
from merganser.operators.coefficients import PerTask
from merganser.operators.drop import drop_layer, drops
from merganser.operators.joint_layers import JointLayers, joint_layers
from merganser.operators.sums import scaled_sum
from merganser.operators.ties import Sparse, cut_and_winner, disjoint_mean, elect_sign, trim, winning_sign

Inner = Literal["task_arithmetic", "ties", "dare", "dare_ties"]


def inner_merge(
    layers: JointLayers, inner: Inner, density: PerTask, drop_rate: PerTask
) -> Callable[[LayerDeltas], Tensor]:
    """Return what merges joint coordinates, or a vector, as the method of this name does, unscaled."""
    drop = partial(drop_layer, drop_rate=drop_rate)
    if inner == "task_arithmetic":
        return lambda layer: scaled_sum(layer.deltas, 1)
    if inner == "dare":
        return lambda layer: scaled_sum(drop(layer), 1)
    if inner == "dare_ties":
        winner = winning_sign(layers, drop)
        return lambda layer: elected_mean(drop(layer), winner)
    cut, winner = cut_and_winner(layers, density)
    return lambda layer: elected_mean(trim(layer.deltas, cut), winner)


def elected_mean(sparse: Sparse, winner: int) -> Tensor:
    """Elect a sign per entry (T, ...), and average the tasks that agree."""
    return disjoint_mean(sparse, elect_sign(sparse, winner))


@method(
    family="joint",
    formula=r"U\, \mathrm{inner}(S V_1^\top, \ldots, S V_T^\top), "
    r"\quad [\Delta_1 \cdots \Delta_T] = U S [V_1^\top \cdots V_T^\top]",
    involvement="VDI",
    paper="Stoica et al., ICLR 2025, arXiv:2410.19735",
    law="task arithmetic of 1/T inside gives the average",
    joint="rows",
    vectors="alike",
    ours=("density", "drop_rate", "scaling"),
    draws=drops,
    copies=5,
)
def knots(
    layers: LayerSource,
    *,
    inner: Inner = "ties",
    density: Densities = 0.2,
    drop_rate: Rates = 0.8,
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas | LayerLowRank], Tensor]:
    """Merge S V_i of the joint SVD [D_1 .. D_T] = U S [V_1 .. V_T] by `inner`, and multiply by U.

    `density` is what ties keeps of each task's whole joint vector, `drop_rate` what dare and dare_ties drop of it.
    Vectors are merged by `inner` as they are.
    """
    space = joint_layers(layers)
    merge_coordinates = inner_merge(space, inner, density, drop_rate)

    def merge(layer: LayerDeltas | LayerLowRank) -> Tensor:
        if isinstance(layer, LayerDeltas) and layer.kind == "vector":
            return scaling * merge_coordinates(layer)
        merged = merge_coordinates(space.layer(layer.name))
        return scaling * (space.basis(layer.name) @ merged)

    return merge
