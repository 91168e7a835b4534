"""WEMoE's routers and mixtures (arXiv:2402.00433): how much of each task's vector an example takes in a block's MLP.

Legend: B examples, N tokens, D features of a block's input, T tasks, M x K linear maps.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from merganser.models import Blend, Extra
from merganser.operators.drop import generator_of

AT_ONCE = 2**24  # bytes of maps that are formed together
DEVIATION = 0.01  # of the hidden layer's starting weights, as in the authors' code


class BlockRouter(NamedTuple):
    """Two linear layers with a ReLU between them; no softmax after them."""

    hidden: Tensor  # (D, D)
    hidden_bias: Tensor  # (D,)
    out: Tensor  # (T, D)
    out_bias: Tensor  # (T,)

    def weights(self, rows: Tensor, counted: Tensor) -> Tensor:
        """Return how much each example takes of each task (B, T), from a block's input (B, N, D).

        It is the mean over the tokens that `counted` (B, N) marks; the last layer is applied after that, to the same
        effect. So where its weights are zero, all examples take exactly its biases.
        """
        hidden = torch.relu(rows.to(self.hidden.dtype) @ self.hidden.T + self.hidden_bias)
        marked = counted.to(hidden.dtype).unsqueeze(1)
        return (marked @ hidden / marked.sum(dim=2, keepdim=True)).squeeze(1) @ self.out.T + self.out_bias


def first_router(width: int, tasks: int, scaling: float, seed: int, block: str) -> BlockRouter:
    """Return the router to begin with: every example takes `scaling` of every task."""
    drawn = torch.randn(width, width, generator=generator_of(seed, "", block)).mul_(DEVIATION)
    return BlockRouter(drawn, torch.zeros(width), torch.zeros(tasks, width), torch.full((tasks,), scaling))


def router_tensors(block: str, router: BlockRouter) -> dict[str, Tensor]:
    """Name a router's tensors by its block and their place in it."""
    return {f"{block}/{place}": value for place, value in router._asdict().items()}


def routers_of(tensors: Mapping[str, Tensor]) -> dict[str, BlockRouter]:
    """Gather tensors of such names to routers by their blocks; raise KeyError where one is missing."""
    blocks = dict.fromkeys(name.rpartition("/")[0] for name in tensors)
    return {block: BlockRouter(*(tensors[f"{block}/{place}"] for place in BlockRouter._fields)) for block in blocks}


def blend(
    routers: Mapping[str, BlockRouter], vectors: Mapping[str, Tensor], note: Callable[[Tensor], None] | None = None
) -> Blend:
    """Return what adds to a block's MLP the tasks' vectors (T, ...), by parameter, as the block's router weighs them.

    `note` is given each block's weights (B, T).
    """

    def entered(block: str, rows: Tensor, counted: Tensor) -> Extra:
        if block not in routers:
            return lambda name, inputs: None
        weights = routers[block].weights(rows, counted)
        if note is not None:
            note(weights)

        def extra(name: str, inputs: Tensor) -> Tensor | None:
            bias = f"{name.removesuffix('weight')}bias"
            shift_of_vectors = mixture(inputs, weights, vectors[name]) if name in vectors else None
            if bias not in vectors:
                return shift_of_vectors
            shift = (weights.to(vectors[bias].dtype) @ vectors[bias]).unsqueeze(1)
            return shift if shift_of_vectors is None else shift_of_vectors + shift

        return extra

    return entered


def mixture(rows: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
    """Apply to each example (B, N, K) its own sum (weights B, T) of the tasks' linear maps (T, M, K): (B, N, M).

    The maps of a few examples at a time are formed, and once more backwards: with more than a few tokens, that is a
    fraction of the products that applying each task's map to all rows takes.

    >>> rows, weights = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[10.0, 1.0]])
    >>> mixture(rows, weights, torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[[12.]]])
    """
    outputs: Tensor = _Mixture.apply(rows, weights, vectors)
    return outputs


class _Mixture(torch.autograd.Function):
    """Differentiable in the rows and the weights, not in the tasks' maps."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, vectors)
        outputs = rows.new_empty(*rows.shape[:2], vectors.shape[1])
        for some in _few(rows, vectors):
            torch.bmm(rows[some], _formed(weights[some], vectors).mT, out=outputs[some])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights, vectors = ctx.saved_tensors
        of_rows, of_weights = torch.empty_like(rows), torch.empty_like(weights)
        for some in _few(rows, vectors):
            torch.bmm(gradient[some], _formed(weights[some], vectors), out=of_rows[some])
            of_maps = torch.bmm(gradient[some].mT, rows[some])
            of_weights[some] = (of_maps.flatten(1) @ vectors.flatten(1).T).to(weights.dtype)
        return of_rows, of_weights, None


def _few(rows: Tensor, vectors: Tensor) -> Iterator[slice]:
    """Give examples whose own maps take AT_ONCE bytes together, or one whose map takes more."""
    count = max(1, AT_ONCE // max(1, vectors[0].nbytes))
    return (slice(start, start + count) for start in range(0, len(rows), count))


def _formed(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return each example's own map: (B, M, K)."""
    return (weights.to(vectors.dtype) @ vectors.flatten(1)).view(-1, *vectors.shape[1:])
