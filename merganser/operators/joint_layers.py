"""The basis that all tasks' matrices share, and the tasks' coordinates in it (KnOTS, arXiv:2410.19735).

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor

from merganser.inputs.layers import Layer, LayerDeltas, LayerLowRank, LayerSource, LayerTable
from merganser.linalg.joint import JointFactors, joint, joint_low_rank
from merganser.linalg.svd import orientation
from merganser.operators.spool import Spool

R = TypeVar("R")
NO_LENGTH = 1e-7  # relative: a shorter row is rounding error, of a task with no part in this direction
NOTHING = 1e-12  # of a unit row: a smaller entry is rounding error, in a column that the task did not change


@dataclass(frozen=True)
class JointLayers(LayerSource):
    """The layers with the tasks' matrices in joint coordinates S V_t (T, K, N); vectors are unchanged.

    The coordinates and the bases U^T (K, M) are on disk: memory holds only the layers being processed. The sign of each
    row of U^T is set so that its largest entry is positive, since LAPACK drivers differ in it.
    """

    layers: LayerSource
    bases: Spool = field(default_factory=Spool)
    coordinates: Spool = field(default_factory=Spool)
    seeds: dict[str, int] = field(default_factory=dict)

    @cached_property
    def table(self) -> LayerTable:
        """Return the layers' table with the shapes of the coordinates."""
        table = self.layers.table
        shapes = {n: self.coordinates.shape(n)[1:] if n in self.coordinates else s for n, s in table.shapes.items()}
        return replace(table, shapes=shapes)

    def add(self, layer: Layer) -> None:
        """Decompose the tasks' matrices of one layer and write the result to disk."""
        if isinstance(layer, LayerDeltas) and layer.kind == "vector":
            return
        assert isinstance(layer, LayerDeltas | LayerLowRank)
        space = joint_factors(layer)
        signs = orientation(space.u).unsqueeze(1)
        self.bases.put(layer.name, space.u.mT.to(layer.dtype) * signs.to(layer.dtype))
        tasks = len(layer.tasks)
        rows = (zero_rounding_(space.coordinates(task), space.s).mul_(signs).to(layer.dtype) for task in range(tasks))
        self.coordinates.put_stack(layer.name, rows, tasks)
        self.seeds[layer.name] = layer.seed

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        """Apply a function to each name, in as many threads as the source."""
        return self.layers.spread(function)

    def layer(self, name: str) -> LayerDeltas:
        """Read one parameter of all tasks."""
        if name not in self.coordinates:
            return cast(LayerDeltas, self.layers.layer(name))
        return LayerDeltas(name, "matrix", self.layers.tasks, self.coordinates.get(name), self.seeds[name])

    def basis(self, name: str) -> Tensor:
        """Read the basis U (M, K) of a matrix."""
        return self.bases.get(name).mT


def joint_layers(layers: LayerSource) -> JointLayers:
    """Decompose each layer once and keep the results on disk."""
    joined = JointLayers(layers)
    deque(layers.map(joined.add), maxlen=0)
    return joined


def joint_factors(layer: LayerDeltas | LayerLowRank) -> JointFactors:
    """Decompose a layer's T matrices side by side. Adapters are not multiplied out."""
    if isinstance(layer, LayerLowRank):
        return joint_low_rank(layer.left, layer.right)
    return joint(layer.deltas, layer.basis)


def zero_rounding_(rows: Tensor, s: Tensor) -> Tensor:
    """Zero the rounding errors in a task's rows (K, N) of S [V_1 .. V_T], whose full rows have the lengths s.

    These are the rows of directions in which the task has no part and the columns that it did not change; sign election
    must not count them.

    >>> zero_rounding_(torch.tensor([[1.0, 1e-15], [1e-9, 0.0]]), torch.tensor([1.0, 1.0]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    some = rows.norm(dim=1) > NO_LENGTH * s
    least = torch.where(some, NOTHING * s, torch.inf).unsqueeze(1)
    return rows.masked_fill_((rows <= least).logical_and_(rows >= -least), 0)
