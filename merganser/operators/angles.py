"""Angles between the tasks' vectors, and sums of them whose shares follow from the angles.

A parameter is one vector, or one for each row or column. With a `start` the vectors are start + delta: the models'
own weights where it is the base. Inner products and sums are taken in float64, a tile at a time.
Legend: T tasks, G groups (the vectors of one task), C entries of a vector.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import BLOCK, LARGE, block_size, is_looped, is_summed_in_order

Granularity = Literal["parameter", "row", "column"]
VectorsOf = Literal["deltas", "models"]
TILE = 1 << 14  # entries summed at once: torch sums more in several threads, in an order that depends on their number
ROUNDING = 1e-12  # of shares that add up to 1


def grouped(stack: Tensor, granularity: Granularity = "parameter") -> Tensor:
    """View each task's tensor (T, ...) as its vectors (T, G, C); a tensor of one dimension is one vector.

    >>> stack = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> grouped(stack, "column").tolist()
    [[[1.0, 3.0], [2.0, 4.0]]]
    """
    tasks, *shape = stack.shape
    if granularity == "parameter" or len(shape) < 2:
        return stack.reshape(tasks, 1, prod(shape))
    if granularity == "row":
        return stack.reshape(tasks, prod(shape[:-1]), shape[-1])
    return stack.movedim(1, -1).reshape(tasks, prod(shape[1:]), shape[0])


def base_vectors(layer: LayerDeltas, granularity: Granularity = "parameter") -> Tensor:
    """Return the base's weights of a layer as vectors (G, C)."""
    assert layer.base is not None, f"{layer.name} was read without the base's weights"
    return grouped(layer.base.unsqueeze(0), granularity)[0]


def vectors_of(
    layer: LayerDeltas, granularity: Granularity = "parameter", of: VectorsOf = "deltas"
) -> tuple[Tensor, Tensor | None]:
    """Return a layer's deltas as vectors (T, G, C) and, `of` the models, the base's (G, C) that they start from."""
    return grouped(layer.deltas, granularity), base_vectors(layer, granularity) if of == "models" else None


def ungrouped(vectors: Tensor, shape: tuple[int, ...], granularity: Granularity = "parameter") -> Tensor:
    """Return vectors (G, C) to the shape that they were views of.

    >>> ungrouped(torch.tensor([[1.0, 3.0], [2.0, 4.0]]), (2, 2), "column").tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    if granularity == "column" and len(shape) > 1:
        return vectors.reshape(*shape[1:], shape[0]).movedim(-1, 0).contiguous()
    return vectors.reshape(shape)


def tiles(vectors: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cut (T, G, C) into tiles of some groups and some entries."""
    tasks, groups, entries = vectors.shape
    size = block_size(vectors.device)
    columns = min(entries, TILE if vectors.device.type == "cpu" else max(1, size // tasks))
    rows = max(1, size // max(1, tasks * columns))
    for row in range(0, groups, rows):
        for column in range(0, entries, max(1, columns)):
            yield slice(row, row + rows), slice(column, column + columns)


def _tile(vectors: Tensor, start: Tensor | None, rows: slice, columns: slice) -> Tensor:
    tile = vectors[:, rows, columns].double()
    return tile if start is None else tile + start[rows, columns]


def vector_inner_products(vectors: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the inner products (T, T, G) of the tasks' vectors (T, G, C), in float64.

    >>> vector_inner_products(torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]])).squeeze(2).tolist()
    [[25.0, 3.0], [3.0, 1.0]]
    """
    tasks, groups, _ = vectors.shape
    inner = torch.zeros(tasks, tasks, groups, dtype=torch.float64, device=vectors.device)
    pairs = list(combinations_with_replacement(range(tasks), 2))
    for rows, products in _products(vectors, start):
        for (i, j), product in zip(pairs, products, strict=True):
            inner[i, j, rows] += product.sum(-1)
    for i, j in combinations_with_replacement(range(tasks), 2):
        inner[j, i] = inner[i, j]
    return inner


def _products(vectors: Tensor, start: Tensor | None) -> Iterator[tuple[slice, Iterable[Tensor]]]:
    """Give the products of each two tasks' entries in float64, tile by tile, with the groups that these are of."""
    pairs = list(combinations_with_replacement(range(len(vectors)), 2))
    is_looped_over = vectors.numel() >= LARGE and is_looped(vectors) and vectors.is_contiguous()
    flat, begun = vectors.reshape(len(vectors), -1), None if start is None else start.reshape(-1)
    for rows, columns in tiles(vectors):
        some = vectors[0, rows, columns]
        if is_looped_over and some.is_contiguous() and (begun is None or begun.dtype == vectors.dtype):
            from merganser.linalg import loops

            products = torch.empty(len(pairs), *some.shape, dtype=torch.float64)
            first = rows.start * vectors.shape[2] + columns.start
            beside = vectors.new_empty(0) if begun is None else begun
            loops.products(flat.numpy(), first, beside.numpy(), products.view(len(pairs), -1).numpy())
            yield rows, products
        else:
            tile = _tile(vectors, start, rows, columns)
            yield rows, (tile[i] * tile[j] for i, j in pairs)


def ordered_sum(parts: Iterable[Tensor]) -> Tensor:
    """Add up numbers (..., n) along the last dimension, one after another, over parts that follow each other.

    The sum has the same bits however the numbers are cut into parts.

    >>> ordered_sum([torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0]])])
    tensor([7.])
    """
    total = None
    for part in parts:
        every = part if total is None else torch.cat([total.unsqueeze(-1), part], -1)
        total = every.cumsum(-1)[..., -1].clone()
    assert total is not None, "there is a part"
    return total


def as_rows(stack: Tensor) -> Tensor:
    """View each task's tensor (T, ...) as the rows (T, M, N) of its first dimension; a vector is one row."""
    return stack.reshape(len(stack), stack.shape[1] if stack.ndim > 2 else 1, prod(stack.shape[2:] or stack.shape[1:]))


def row_size(stack: Tensor) -> int:
    """Return how many entries a row of the tasks' tensors (T, ...) has."""
    return as_rows(stack).shape[-1]


def row_sums(parts: Iterable[Tensor], size: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of each row, changed entry by entry, in float64 (T, M); the parts (T, C) are some rows each.

    >>> row_sums([torch.tensor([[3.0, -4.0, 0.0, 1.0]])], 2, torch.square)
    tensor([[25.,  1.]], dtype=torch.float64)
    """
    return torch.cat([_row_sums(part.unflatten(1, (-1, size)), change) for part in parts], 1)


def _row_sums(rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    sums = torch.zeros(rows.shape[:2], dtype=torch.float64, device=rows.device)
    for some, columns in tiles(rows):
        sums[:, some] += change(rows[:, some, columns].double()).sum(-1)
    return sums


def inner_products(
    parameter: LayerSource, granularity: Granularity = "parameter", of: VectorsOf = "deltas"
) -> Callable[[LayerDeltas], Tensor]:
    """Return a function of a piece of a parameter: the inner products (T, T, G) of the vectors that it has entries of.

    They are those of whole vectors: unless each row is one, all pieces are read first.
    """
    if granularity == "row":
        return lambda piece: vector_inner_products(*vectors_of(piece, granularity, of))
    if granularity == "parameter":
        summed = ordered_sum(parameter.map(lambda piece: _inner_products_of_rows(piece, of))).unsqueeze(2)
    else:
        summed = ordered_sum(_products_in_columns(parameter, of))
    return lambda piece: summed


def _inner_products_of_rows(piece: LayerDeltas, of: VectorsOf) -> Tensor:
    """Return the inner products (T, T, M) of a piece's rows."""
    start = base_vectors(piece).reshape(as_rows(piece.deltas).shape[1:]) if of == "models" else None
    return vector_inner_products(as_rows(piece.deltas), start)


def _products_in_columns(parameter: LayerSource, of: VectorsOf) -> Iterator[Tensor]:
    """Yield the products (T, T, G, C) of the tasks' entries in each column, some rows at a time, in their order."""
    for piece in parameter:
        assert isinstance(piece, LayerDeltas)
        vectors, start = vectors_of(piece, "column", of)
        tasks, groups, entries = vectors.shape
        step = max(1, BLOCK // max(1, tasks * tasks * groups))
        for first in range(0, entries, step):
            tile = _tile(vectors, start, slice(None), slice(first, first + step))
            yield tile.unsqueeze(0) * tile.unsqueeze(1)


def squared_lengths(deltas: Tensor) -> Tensor:
    """Return the squared length of each task's tensor (T, ...), in float64 (T).

    >>> squared_lengths(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [25.0, 1.0]
    """
    vectors = grouped(deltas)
    totals = torch.zeros(len(deltas), dtype=torch.float64, device=deltas.device)
    for rows, columns in tiles(vectors):
        totals += vectors[:, rows, columns].double().square().sum((1, 2))
    return totals


def lengths(inner: Tensor) -> Tensor:
    """Return the lengths (T, G) of vectors with these inner products (T, T, G)."""
    return inner.diagonal().T.sqrt()


def vector_cosines(inner: Tensor) -> Tensor:
    """Return the cosines (T, T, G) between vectors with these inner products; 0 with a vector of zeros.

    >>> inner = vector_inner_products(torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]], [[0.0, 0.0]]]))
    >>> vector_cosines(inner)[0].flatten().tolist()
    [1.0, 0.6, 0.0]
    """
    sizes = lengths(inner)
    both = sizes.unsqueeze(0) * sizes.unsqueeze(1)
    return torch.where(both > 0, inner / both, 0.0).clamp_(-1, 1)


def mean_cosine(inner: Tensor) -> Tensor:
    """Return the mean cosine (G) over all pairs of vectors with these inner products (T, T, G); 1 for a single task.

    >>> mean_cosine(vector_inner_products(torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]]))).tolist()
    [0.6]
    """
    cosines = vector_cosines(inner)
    pairs = [cosines[i, j] for i, j in combinations(range(len(cosines)), 2)]
    return torch.stack(pairs).mean(0) if pairs else torch.ones_like(cosines[0, 0])


def arc_shares(between: Tensor, ratio: float, linear: float) -> Tensor:
    """Return what two vectors contribute to the point `ratio` of the way from the one to the other: (2, G).

    The way is the arc between them, or the line where the cosine's size is above `linear`. Their cosines are given as
    `vector_cosines` returns them (2, 2, G). A single vector is its own (1, G).

    >>> right_angle = torch.eye(2).double().unsqueeze(2)
    >>> arc_shares(right_angle, 0.5, 0.9995).flatten().tolist()
    [0.7071067811865475, 0.7071067811865475]
    """
    if len(between) == 1:
        return torch.ones_like(between[0])
    cosine = between[0, 1]
    angle = cosine.acos()
    arc = torch.stack([((1 - ratio) * angle).sin(), (ratio * angle).sin()]) / angle.sin()
    line = torch.tensor([[1 - ratio], [ratio]], dtype=cosine.dtype, device=cosine.device)
    return torch.where(cosine.abs() > linear, line, arc)


def combined(vectors: Tensor, shares: Tensor, start: Tensor | None = None) -> Tensor:
    """Add up the tasks' vectors (T, G, C), each times its share (T, G); return the vectors' dtype.

    With a start, what the sum of start + vector is beyond the start: where the shares add up to more than 1, that much
    of the start too.

    >>> vectors, half = torch.tensor([[[4.0]], [[2.0]]]), torch.full((2, 1), 0.5)
    >>> combined(vectors, half).item(), combined(vectors, 2 * half, torch.tensor([[10.0]])).item()
    (3.0, 16.0)
    """
    shares = shares.to(vectors.device)  # those of a whole parameter came from a pass over its pieces
    beyond = shares.sum(0) - 1
    beyond = torch.where(beyond.abs() > ROUNDING, beyond, 0.0)
    result = torch.empty(vectors.shape[1:], dtype=vectors.dtype, device=vectors.device)
    if is_summed_in_order(vectors, shares) and (start is None or start.dtype == vectors.dtype):
        from merganser.linalg import loops

        beside = vectors.new_empty(0, vectors.shape[2]) if start is None else start
        given = (vectors, shares, beside, beyond, result)
        loops.weighted_sum(*(each.contiguous().numpy() for each in given))
        return result
    for rows, columns in tiles(vectors):
        summed = (vectors[:, rows, columns] * shares[:, rows].unsqueeze(2)).sum(0)
        if start is not None:
            summed += start[rows, columns] * beyond[rows].unsqueeze(1)
        result[rows, columns] = summed
    return result
