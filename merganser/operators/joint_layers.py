"""The basis that all tasks' matrices share, and the tasks' coordinates in it (KnOTS, arXiv:2410.19735).

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from merganser.inputs.layers import InTurn, Layer, LayerDeltas, LayerLowRank, LayerSource
from merganser.linalg.joint import JointFactors, joint, joint_low_rank
from merganser.linalg.svd import orientation
from merganser.operators.spool import Spool

R = TypeVar("R")
NO_LENGTH = 1e-7  # of a unit row: what rounding leaves of the row of a task that has no part in a direction
NOTHING = 1e-12  # of a unit row: what rounding leaves of a column that a task did not change


@dataclass(frozen=True)
class JointLayers(InTurn):
    """The layers with the tasks' matrices in joint coordinates S V_t (T, K, N), vectors as they are.

    The coordinates and the bases U^T (K, M) are on disk: only the layers in work are in memory. Each row of U^T is
    turned so that its largest entry is positive: the sign is the LAPACK driver's choice.
    """

    layers: LayerSource
    bases: Spool = field(default_factory=Spool)
    coordinates: Spool = field(default_factory=Spool)
    seeds: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return self.layers.names

    def add(self, layer: Layer) -> None:
        """Decompose a matrix of all tasks and set it aside."""
        if isinstance(layer, LayerDeltas) and layer.kind == "vector":
            return
        assert isinstance(layer, LayerDeltas | LayerLowRank)
        space = joint_factors(layer)
        signs = orientation(space.u).unsqueeze(1)
        self.bases.put(layer.name, space.u.mT.to(layer.dtype) * signs.to(layer.dtype))
        tasks = len(layer.tasks)
        rows = (known_(space.coordinates(task), space.s).mul_(signs).to(layer.dtype) for task in range(tasks))
        self.coordinates.put_stack(layer.name, rows, tasks)
        self.seeds[layer.name] = layer.seed

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Read each layer and apply a function to it, in as many threads as the source."""
        return self.layers.spread(lambda name: function(self.layer(name)))

    def layer(self, name: str) -> LayerDeltas:
        """Read one parameter of all tasks."""
        if name not in self.coordinates:
            return cast(LayerDeltas, self.layers.layer(name))
        return LayerDeltas(name, "matrix", self.layers.tasks, self.coordinates.get(name), self.seeds[name])

    def basis(self, name: str) -> Tensor:
        """Read the basis U (M, K) of a matrix."""
        return self.bases.get(name).mT


def joint_layers(layers: LayerSource) -> JointLayers:
    """Decompose each matrix once, and keep what the decompositions give on disk."""
    found = JointLayers(layers)
    deque(layers.map(found.add), maxlen=0)
    return found


def joint_factors(layer: LayerDeltas | LayerLowRank) -> JointFactors:
    """Decompose a layer's T matrices side by side. Adapters are not multiplied out."""
    if isinstance(layer, LayerLowRank):
        return joint_low_rank(layer.left, layer.right)
    return joint(layer.deltas, layer.basis)


def known_(rows: Tensor, s: Tensor) -> Tensor:
    """Zero what rounding leaves of a task's rows (K, N) of S [V_1 .. V_T], whose whole rows are of length s.

    That is where the task has no part in a direction, or did not change a column: no entry to elect a sign by.

    >>> known_(torch.tensor([[1.0, 1e-15], [1e-9, 0.0]]), torch.tensor([1.0, 1.0]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    some = rows.norm(dim=1) > NO_LENGTH * s
    least = torch.where(some, NOTHING * s, torch.inf).unsqueeze(1)
    return rows.masked_fill_((rows <= least).logical_and_(rows >= -least), 0)
