"""Task vectors added up, or trimmed and elected."""

import torch
from torch import Tensor

from benchmarks.plain.states import State


def task_arithmetic(vectors: list[State], scaling: float = 0.4) -> State:
    """Add the task vectors and scale the sum (Ilharco et al., ICLR 2023)."""
    return {name: scaling * sum_of([vector[name] for vector in vectors]) for name in vectors[0]}


def ties(vectors: list[State], density: float = 0.2, scaling: float = 1.0) -> State:
    """Trim each whole task vector, elect signs, average who agrees (Yadav et al., NeurIPS 2023)."""
    shapes = {name: tensor.shape for name, tensor in vectors[0].items()}
    flat = torch.stack([flattened(vector) for vector in vectors])
    vectors.clear()
    return unflattened(scaling * disjoint_mean(trimmed(flat, density)), shapes)


def sum_of(deltas: list[Tensor]) -> Tensor:
    """Add tensors."""
    return torch.stack(deltas).sum(0)


def flattened(state: State) -> Tensor:
    """Set all parameters behind one another."""
    return torch.cat([tensor.flatten() for tensor in state.values()])


def unflattened(vector: Tensor, shapes: dict[str, torch.Size]) -> State:
    """Cut a whole vector into parameters again."""
    pieces = vector.split([shape.numel() for shape in shapes.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def trimmed(vectors: Tensor, density: float) -> Tensor:
    """Keep the largest entries of each row, in place: the papers' code makes three more copies of all rows."""
    count = int(density * vectors.shape[1])
    for vector in vectors:
        magnitudes = vector.abs()
        vector *= magnitudes >= magnitudes.kthvalue(len(vector) - count + 1).values
    return vectors


def disjoint_mean(vectors: Tensor) -> Tensor:
    """Average each column's entries of the elected sign; a draw takes the sign that won more columns."""
    elected = vectors.sum(0).sign()
    elected[elected == 0] = elected.sum().sign()
    agreeing = torch.where(vectors * elected > 0, vectors, 0)
    return agreeing.sum(0) / (agreeing != 0).sum(0).clamp(min=1)
