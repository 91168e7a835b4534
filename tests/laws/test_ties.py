from math import floor

import pytest
import torch
from torch import Tensor

from tests.laws.samples import assert_same, in_pieces, joined, layer_of, merged_vector, network


def trimmed(vector: Tensor, density: float) -> Tensor:
    """Keep the largest entries by sorting; of equal ones the first."""
    keep = vector.abs().argsort(descending=True, stable=True)[: floor(density * len(vector) + 1e-9)]
    return torch.zeros_like(vector).index_copy(0, keep, vector[keep])


def ties_of(vectors: Tensor, density: float, scaling: float) -> Tensor:
    """TIES as the paper prints it, with elected signs of 0 settled by the majority."""
    tau = torch.stack([trimmed(vector, density) for vector in vectors])
    sign = tau.sum(0).sign()
    majority = 1.0 if sign.sum() >= 0 else -1.0
    merged = torch.zeros(tau.shape[1], dtype=tau.dtype)
    for p in range(tau.shape[1]):
        elected = float(sign[p]) or majority
        agreeing = [float(x) for x in tau[:, p] if x != 0 and (x > 0) == (elected > 0)]
        merged[p] = sum(agreeing) / len(agreeing) if agreeing else 0.0
    return scaling * merged


@pytest.mark.parametrize("density", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_ties_equals_the_printed_formula(tasks: int, density: float) -> None:
    layers = network(tasks)
    merged = merged_vector("ties", layers, density=density, scaling=0.7)
    assert_same(merged, ties_of(joined(layers), density, 0.7))


def test_ties_with_one_task_and_density_one_is_the_identity() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("ties", layers, density=1.0), joined(layers)[0])


@pytest.mark.parametrize("density", [0.2, 0.6])
def test_ties_of_identical_models_is_that_models_trimmed_delta(density: float) -> None:
    layers = [layer_of(layer.name, layer.deltas.repeat(4, *[1] * (layer.deltas.ndim - 1))) for layer in network(1)]
    assert torch.equal(merged_vector("ties", layers, density=density), trimmed(joined(layers)[0], density))


def test_ties_by_hand() -> None:
    tasks = [[4.0, -3.0, 0.1, 2.0, 0.2, 0.0], [2.0, 5.0, 0.3, -3.0, 0.1, 0.0], [0.3, -1.0, -0.2, 2.0, 0.1, 0.0]]
    # density 1/2 keeps [4 -3 . 2 . .], [2 5 . -3 . .] and [.3 -1 . 2 . .]; the signs elected are + + . + . .
    assert merged_vector("ties", in_pieces(torch.tensor(tasks)), density=0.5).tolist() == pytest.approx(
        [2.1, 5.0, 0.0, 2.0, 0.0, 0.0]
    )


def test_ties_trims_over_the_whole_vector_and_not_each_parameter() -> None:
    large, small = torch.tensor([[[5.0, 6.0]]]), torch.tensor([[1.0, 2.0]])
    layers = [layer_of("square", large), layer_of("bias", small)]
    assert merged_vector("ties", layers, density=0.5).tolist() == [5.0, 6.0, 0.0, 0.0]


@pytest.mark.parametrize(("other", "settled"), [(-3.0, -2.0), (3.0, 2.0)])
def test_a_draw_goes_to_the_sign_that_wins_the_whole_vector(other: float, settled: float) -> None:
    draw, rest = torch.tensor([[[2.0, 0.0]], [[-2.0, 0.0]]]), torch.tensor([[other, other], [other, 0.0]])
    layers = [layer_of("square", draw), layer_of("bias", rest)]
    assert merged_vector("ties", layers, density=1.0).tolist() == [settled, 0.0, other, other]


def test_a_draw_of_the_whole_vector_is_settled_as_positive() -> None:
    layers = in_pieces(torch.tensor([[2.0, 1.0, -1.0, 0.0], [-2.0, 1.0, -1.0, 0.0]]))
    assert merged_vector("ties", layers, density=1.0).tolist() == [2.0, 1.0, -1.0, 0.0]


def test_equal_magnitudes_at_the_cut_are_kept_in_reading_order() -> None:
    layers = in_pieces(torch.tensor([[1.0, -1.0, 0.5, 1.0, 1.0, -1.0]]))
    assert merged_vector("ties", layers, density=0.5).tolist() == [1.0, -1.0, 0.0, 1.0, 0.0, 0.0]
