"""The basis that all tasks' matrices share, and the tasks' coordinates in it (KnOTS, arXiv:2410.19735).

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from merganser.layers import LayerDeltas, LayerLowRank, LayerSource
from merganser.linalg.joint import joint
from merganser.linalg.svd import joint_low_rank, orientation
from merganser.operators.spool import Spool

NO_LENGTH = 1e-7  # of a unit row: what rounding leaves of the row of a task that has no part in a direction
NOTHING = 1e-12  # of a unit row: what rounding leaves of a column that a task did not change


@dataclass(frozen=True)
class JointLayers:
    """The layers with the tasks' matrices in joint coordinates S V_t (T, K, N), vectors as they are.

    The coordinates and the bases (M, K) are on disk: one layer is in memory at a time.
    """

    layers: LayerSource
    bases: Spool = field(default_factory=Spool)
    coordinates: Spool = field(default_factory=Spool)
    seeds: dict[str, int] = field(default_factory=dict)

    def add(self, layer: LayerDeltas | LayerLowRank) -> None:
        """Decompose a matrix of all tasks and set it aside."""
        basis, coordinates = in_joint_basis(layer)
        self.bases.put(layer.name, basis)
        self.coordinates.put(layer.name, coordinates)
        self.seeds[layer.name] = layer.seed

    def layer(self, name: str) -> LayerDeltas:
        """Read one parameter of all tasks."""
        if name not in self.coordinates:
            return cast(LayerDeltas, self.layers.layer(name))
        return LayerDeltas(name, "matrix", self.layers.tasks, self.coordinates.get(name), self.seeds[name])

    def __iter__(self) -> Iterator[LayerDeltas]:
        return map(self.layer, self.layers.names)


def joint_layers(layers: LayerSource) -> JointLayers:
    """Decompose each matrix once, and keep what the decompositions give on disk."""
    found = JointLayers(layers)
    for name in layers.names:
        if layers.kinds[name] == "matrix":
            found.add(cast(LayerDeltas | LayerLowRank, layers.layer(name)))
    return found


def in_joint_basis(layer: LayerDeltas | LayerLowRank) -> tuple[Tensor, Tensor]:
    """Return U (M, K) and the S V_t (T, K, N) of the tasks' matrices side by side, U S [V_1 .. V_T], in their dtype.

    Adapters are not multiplied out.
    """
    u, s, vh = joint_low_rank(layer.left, layer.right) if isinstance(layer, LayerLowRank) else joint(layer.deltas)
    signs = orientation(u)
    rows = vh.unflatten(1, (len(layer.tasks), -1)).unbind(1)
    coordinates = torch.empty(len(rows), *rows[0].shape, dtype=layer.dtype, device=vh.device)
    for row, out in zip(rows, coordinates, strict=True):
        out.copy_(known(row) * (signs * s).unsqueeze(1))
    return (u * signs).to(layer.dtype), coordinates


def known(rows: Tensor) -> Tensor:
    """Zero what rounding leaves of a task's rows (K, N) of [V_1 .. V_T], whose whole rows are of unit length.

    That is where the task has no part in a direction, or did not change a column: no entry to elect a sign by.
    """
    return torch.where((rows.abs() > NOTHING) & (rows.norm(dim=1, keepdim=True) > NO_LENGTH), rows, 0.0)
