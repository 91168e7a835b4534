"""KnOTS: merge the tasks' right factors in the left basis that their joint SVD gives them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torch import Tensor

from merganser.layers import LayerDeltas, LayerSource
from merganser.linalg.select import Cut
from merganser.linalg.svd import joint, oriented
from merganser.operators.disjoint import disjoint_mean
from merganser.operators.elect import balance_of, elect_sign, majority_of, settle_draws
from merganser.operators.streams import each_deltas
from merganser.operators.sums import scaled_sum
from merganser.operators.trim import trim, with_cuts
from merganser.registry import PositiveFraction, Scaling, method

Inner = Literal["ties", "task_arithmetic"]


@dataclass(frozen=True)
class Joint:
    """The joint space: each matrix's basis (M, K); for TIES also where to trim, and the sign that wins the space."""

    bases: dict[str, Tensor]
    cuts: dict[str, Cut]
    majority: int = 1


@dataclass(frozen=True)
class JointLayers:
    """The layers with the tasks' matrices in joint coordinates S V_i (T, K, N), vectors as they are."""

    layers: LayerSource
    bases: dict[str, Tensor]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self.layers.tasks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return self.layers.names

    def layer(self, name: str) -> LayerDeltas:
        """Read one parameter of all tasks."""
        return in_basis(cast(LayerDeltas, self.layers.layer(name)), self.bases.get(name))

    def __iter__(self) -> Iterator[LayerDeltas]:
        return (in_basis(layer, self.bases.get(layer.name)) for layer in each_deltas(self.layers))


def in_basis(layer: LayerDeltas, basis: Tensor | None) -> LayerDeltas:
    """Give a layer's deltas (T, M, N) in a basis (M, K) of their column space: (T, K, N)."""
    return layer if basis is None else replace(layer, deltas=basis.mT @ layer.deltas)


def survey(layers: LayerSource, *, inner: Inner, density: float, **_: Any) -> Joint:
    """Find each matrix's joint basis and, for TIES, the cuts and the winning sign of the whole joint space."""
    bases = {
        layer.name: oriented(joint(layer.deltas)).u.to(layer.deltas.dtype)
        for layer in each_deltas(layers)
        if layer.kind == "matrix"
    }
    if inner == "task_arithmetic":
        return Joint(bases, {})
    cuts, balance = {}, 0
    for layer, cut in with_cuts(JointLayers(layers, bases), density):
        cuts[layer.name] = cut
        balance += balance_of(elect_sign(trim(layer.deltas, cut)))
    return Joint(bases, cuts, majority_of(balance))


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
    prepare=survey,
)
def knots(
    layer: LayerDeltas, *, inner: Inner = "ties", density: PositiveFraction = 0.2, scaling: Scaling = 1.0
) -> Tensor:
    """Merge S V_i of the joint SVD [D_1 .. D_T] = U S [V_1 .. V_T] by `inner`, and multiply by U.

    `density` is what TIES keeps of each task's whole joint vector; task arithmetic does not trim.
    Vectors are merged by `inner` as they are.
    """
    space: Joint = layer.prepared
    basis = space.bases.get(layer.name)
    deltas = in_basis(layer, basis).deltas
    if inner == "ties":
        deltas = trim(deltas, space.cuts[layer.name])
        merged = scaling * disjoint_mean(deltas, settle_draws(elect_sign(deltas), space.majority))
    else:
        merged = scaled_sum(deltas, scaling)
    merged = merged.to(deltas.dtype)
    return merged if basis is None else basis @ merged
