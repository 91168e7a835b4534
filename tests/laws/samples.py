"""A small network's worth of task vectors, for laws of methods that see the whole vector."""

from collections.abc import Sequence

import torch
from torch import Tensor

from merganser.checkpoints.kinds import Kind
from merganser.inputs.layers import LayerDeltas
from tests.laws.layers import made_layer, merged

SHAPES: dict[str, tuple[int, ...]] = {
    "square": (6, 6),
    "tall": (9, 4),
    "wide": (4, 9),
    "one_row": (1, 7),
    "convolution": (5, 3 * 2 * 2),  # as the pipeline gives it: out x (in * height * width)
    "bias": (8,),
    "positions": (4, 3),
    "scalar": (),
}
VECTORS = ("bias", "positions", "scalar")


def network(tasks: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[LayerDeltas]:
    """Make every kind of parameter, with small random deltas of different sizes per parameter and task."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for name, shape in SHAPES.items():
        sizes = torch.rand(tasks, generator=generator).view(tasks, *[1] * len(shape))
        deltas = 0.01 * sizes * torch.randn(tasks, *shape, generator=generator)
        layers.append(layer_of(name, deltas.to(dtype)))
    return layers


def layer_of(name: str, deltas: Tensor, seed: int = 0) -> LayerDeltas:
    """Make one layer of the network."""
    kind: Kind = "vector" if name in VECTORS else "matrix"
    return made_layer(name, kind, deltas, seed)


def in_pieces(whole: Tensor) -> list[LayerDeltas]:
    """Cut whole task vectors (T, n) into two layers."""
    half = whole.shape[1] // 2
    return [layer_of("square", whole[:, :half].unsqueeze(1)), layer_of("bias", whole[:, half:])]


def joined(layers: Sequence[LayerDeltas]) -> Tensor:
    """Lay out each task's whole vector in float64: (T, n)."""
    return torch.cat([layer.deltas.double().reshape(len(layer.tasks), -1) for layer in layers], dim=1)


def merged_vector(method: str, layers: Sequence[LayerDeltas], **values: object) -> Tensor:
    """Merge by the method's name; lay the merged delta out as one vector in float64."""
    return torch.cat([delta.double().flatten() for delta in merged(method, *layers, **values)])


def assert_same(merged: Tensor, reference: Tensor, tolerance: float = 1e-5) -> None:
    """Compare with a reference, relative to the size of the whole."""
    assert merged.shape == reference.shape
    assert (merged - reference).norm() <= tolerance * reference.norm()
