"""What a reference is given: plain float64 arrays of one layer, and the few joins that references share.

A reference is a function `reference(layers, **values)` in a method's law test, written from the paper's formula and
sharing no code with the library but its random numbers. It returns, per layer, the merged delta, or (T, ...) each
task's own delta for a method with parts per task. Legend: T tasks, M rows, N columns, n entries of the whole vector.
"""

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from merganser.checkpoints.kinds import Kind
from merganser.inputs.layers import Layer, LayerDeltas, Statistics

Array = NDArray[Any]
PerTask = float | Mapping[str, float]
EPSILON = float(np.finfo(np.float32).eps)


class Given(NamedTuple):
    """One parameter of all tasks, as the formulas see it."""

    name: str
    kind: Kind
    tasks: tuple[str, ...]
    deltas: Array  # float64, (T, M, N) for a matrix, (T, *shape) for a vector
    norms: tuple[float, ...]  # T Frobenius norms of the fine-tuned weights
    seed: int = 0
    statistics: Statistics = Statistics()
    base: Array | None = None  # the base's weights, in the shape of one task's delta
    weights: Array | None = None  # T, for a formula in which coefficients stand apart from the deltas


def given(layers: Sequence[Layer]) -> list[Given]:
    """Turn layers of deltas in memory into what references take."""
    found = []
    for layer in layers:
        assert isinstance(layer, LayerDeltas)
        deltas = layer.deltas.double().numpy()
        base = None if layer.base is None else layer.base.double().numpy()
        about = (layer.name, layer.kind, layer.tasks, deltas, layer.norms, layer.seed, layer.statistics, base)
        found.append(Given(*about))
    return found


def models_of(layer: Given) -> Array:
    """Return the tasks' own weights."""
    assert layer.base is not None
    return layer.base + layer.deltas


def measured(statistic: Tensor | None) -> Array:
    """Return what was measured of a parameter, as the formulas see it."""
    assert statistic is not None
    return statistic.double().numpy()


def flat(layers: Sequence[Given]) -> Array:
    """Lay out each task's whole vector: (T, n)."""
    return np.concatenate([layer.deltas.reshape(len(layer.tasks), -1) for layer in layers], axis=1)


def unflat(vectors: Array, layers: Sequence[Given]) -> list[Array]:
    """Cut whole vectors (..., n) into the layers' shapes: (..., M, N) or (..., *shape)."""
    sizes = [layer.deltas[0].size for layer in layers]
    pieces = np.split(vectors, np.cumsum(sizes)[:-1], axis=-1)
    shapes = [vectors.shape[:-1] + layer.deltas.shape[1:] for layer in layers]
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def svd(matrix: Array, epsilon: float = EPSILON) -> tuple[Array, Array, Array]:
    """Decompose (M, N) into U, S, Vh of its numerical rank: singular values above max(M, N) epsilon times the largest.

    The deltas are differences of float32 numbers, so what is rank there is judged by float32's epsilon.
    """
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    rank = int((s > max(matrix.shape) * epsilon * s.max(initial=0.0)).sum())
    return u[:, :rank], s[:rank], vh[:rank]


def whitened(stack: Array, epsilon: float = EPSILON) -> Array:
    """Return the P Q^T of a stack of unit vectors, on its numerical rank."""
    p, _, qh = svd(stack, epsilon)
    return p @ qh


def counted(fraction: float, n: int) -> int:
    """Count what a fraction of n is."""
    return floor(fraction * n + 1e-9)


def largest(magnitudes: Array, count: int) -> Array:
    """Mark the `count` largest entries of a vector (n,) and those equal to the least of them, but no zeros."""
    least = np.sort(magnitudes)[::-1][count - 1] if count else np.inf
    return (magnitudes >= least) & (magnitudes > 0)


def largest_of_each(vectors: Array, density: PerTask, layers: Sequence[Given]) -> Array:
    """Mark each task's largest entries of its whole vector (T, n), by its own share of them."""
    counts = [counted(share, vectors.shape[1]) for share in each_task(density, layers)]
    return np.stack([largest(np.abs(vector), count) for vector, count in zip(vectors, counts, strict=True)])


def each_task(value: PerTask, layers: Sequence[Given]) -> list[float]:
    """Return what each task has of a number for all, or of a map."""
    return [value[task] if isinstance(value, Mapping) else value for task in layers[0].tasks]


def agreeing(vectors: Array) -> Array:
    """Elect a sign per entry of whole vectors (T, n), draws going to the sign that wins most; 0 for who disagrees."""
    sign = np.sign(vectors.sum(0))
    sign[sign == 0] = 1.0 if sign.sum() >= 0 else -1.0
    return np.where(vectors * sign > 0, vectors, 0)


def elected_mean(vectors: Array) -> Array:
    """Average who agrees with the elected sign (T, n)."""
    return agreeing(vectors).sum(0) / np.maximum((agreeing(vectors) != 0).sum(0), 1)


def laid_out(results: Sequence[Array]) -> Array:
    """Lay merged deltas of all layers out as one vector (n,)."""
    return np.concatenate([result.reshape(-1) for result in results])


def shares(layer: Given, coefficients: Mapping[str, float] | str | None) -> Array:
    """Return each task's lambda, up to a factor: what the coefficients say."""
    if coefficients == "inverse_norm":
        return 1 / np.array(layer.norms)
    assert not isinstance(coefficients, str)
    return np.array([(coefficients or {}).get(task, 1.0) for task in layer.tasks])
