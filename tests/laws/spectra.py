"""Matrices of all tasks for the laws of the spectral methods, and numpy's float64 SVD to hold them to."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merganser.inputs.layers import LayerFactors
from merganser.linalg.svd import factorise
from tests.laws.layers import task_names
from tests.support import each

Array = NDArray[np.float64]

SHAPES: dict[str, tuple[int, int]] = {
    "square": (9, 9),
    "tall": (14, 6),
    "wide": (6, 14),
    "one_row": (1, 7),
    "convolution": (5, 3 * 2 * 2),  # as the pipeline gives it: out x (in * height * width)
}
every_shape = each("shape", SHAPES.values())
every_number = each("tasks", [1, 2, 8])
both_dtypes = each("dtype", [torch.float32, torch.float64])


def drawn(
    tasks: int, shape: tuple[int, int], dtype: torch.dtype = torch.float64, rank: int | None = None, seed: int = 0
) -> Tensor:
    """Draw small task matrices (T, M, N), of full rank or of the given one."""
    generator = torch.Generator().manual_seed(seed)
    if rank is None:
        return (0.02 * torch.randn(tasks, *shape, generator=generator, dtype=torch.float64)).to(dtype)
    left = torch.randn(tasks, shape[0], rank, generator=generator, dtype=torch.float64)
    right = torch.randn(tasks, rank, shape[1], generator=generator, dtype=torch.float64)
    return (0.02 * left @ right).to(dtype)


def decomposed(deltas: Tensor, rank: int | None = None) -> LayerFactors:
    """Decompose as the pipeline does."""
    return LayerFactors("w", task_names(list(deltas)), tuple(factorise(delta, rank) for delta in deltas))


def numpy_of(deltas: Tensor) -> Array:
    """Return the same numbers in numpy's float64."""
    return deltas.double().numpy()


def svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Decompose in float64."""
    return np.linalg.svd(matrix, full_matrices=False)


def cut(matrix: Array, rank: int) -> Array:
    """Truncate to a rank."""
    u, s, vh = svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


def assert_close(merged: object, reference: Array, tolerance: float = 1e-5) -> None:
    """Compare a merged delta with its float64 reference, relative to the reference's size."""
    assert isinstance(merged, Tensor)
    assert tuple(merged.shape) == reference.shape
    assert np.linalg.norm(numpy_of(merged) - reference) <= tolerance * np.linalg.norm(reference)
