from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from tests.laws.references import (
    Array,
    Given,
    PerTask,
    agreeing,
    elected_mean,
    flat,
    given,
    laid_out,
    largest_of_each,
    unflat,
)
from tests.laws.samples import assert_same, in_pieces, joined, layer_of, merged_vector, network


def trimmed(layers: Sequence[Given], density: PerTask) -> Array:
    """Keep each task's largest entries of its whole vector: (T, n)."""
    vectors = flat(layers)
    return np.where(largest_of_each(vectors, density, layers), vectors, 0)


CASES = [{"density": 1.0}]


def reference(layers: Sequence[Given], density: PerTask, scaling: float, averaging: str = "disjoint") -> list[Array]:
    """Trim, elect, average who agrees; or add them up, as FusionBench's merge_func sum."""
    kept = trimmed(layers, density)
    return unflat(scaling * (elected_mean(kept) if averaging == "disjoint" else agreeing(kept).sum(0)), layers)


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_ties_after_nan_weighs_each_task_by_its_weights_norms_parameter_by_parameter(tasks: int) -> None:
    entry = {"coefficients": "inverse_norm", "density": 0.4, "scaling": 1.2}  # as in params.yaml
    layers = network(tasks)
    weighted = []
    for layer in given(layers):
        inverse = 1 / np.array(layer.norms)
        coefficients = tasks / 2 * inverse / inverse.sum()
        shape = (tasks, *[1] * (layer.deltas.ndim - 1))
        weighted.append(layer._replace(deltas=coefficients.reshape(shape) * layer.deltas))
    merged = merged_vector("ties", layers, **registry.get("ties").validate("methods.nan_ties", entry))
    assert_same(merged, torch.from_numpy(laid_out(reference(weighted, 0.4, 1.2))))


def test_ties_with_one_task_and_density_one_is_the_identity() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("ties", layers, density=1.0), joined(layers)[0])


@pytest.mark.parametrize("density", [0.2, 0.6])
def test_ties_of_identical_models_is_that_models_trimmed_delta(density: float) -> None:
    layers = [layer_of(layer.name, layer.deltas.repeat(4, *[1] * (layer.deltas.ndim - 1))) for layer in network(1)]
    expected = torch.from_numpy(trimmed(given(layers), density)[0])
    assert torch.equal(merged_vector("ties", layers, density=density), expected)


def test_ties_by_hand() -> None:
    tasks = [[4.0, -3.0, 0.1, 2.0, 0.2, 0.0], [2.0, 5.0, 0.3, -3.0, 0.1, 0.0], [0.3, -1.0, -0.2, 2.0, 0.1, 0.0]]
    # density 1/2 keeps [4 -3 . 2 . .], [2 5 . -3 . .] and [.3 -1 . 2 . .]; the signs elected are + + . + . .
    assert merged_vector("ties", in_pieces(torch.tensor(tasks)), density=0.5).tolist() == pytest.approx(
        [2.1, 5.0, 0.0, 2.0, 0.0, 0.0]
    )


def test_the_sum_of_those_that_agree_by_hand() -> None:
    tasks = [[4.0, -3.0, 0.1, 2.0, 0.2, 0.0], [2.0, 5.0, 0.3, -3.0, 0.1, 0.0], [0.3, -1.0, -0.2, 2.0, 0.1, 0.0]]
    # kept and elected as above: 4 + 2 + 0.3, 5, nobody, 2 + 2
    merged = merged_vector("ties", in_pieces(torch.tensor(tasks)), density=0.5, averaging="sum")
    assert merged.tolist() == pytest.approx([6.3, 5.0, 0.0, 4.0, 0.0, 0.0])


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_the_sum_is_the_mean_times_the_number_of_those_that_agree(tasks: int) -> None:
    layers, values = network(tasks), {"density": 0.4, "scaling": 0.3}
    counts = (agreeing(trimmed(given(layers), 0.4)) != 0).sum(0)
    mean, summed = (merged_vector("ties", layers, averaging=one, **values) for one in ("disjoint", "sum"))
    assert tasks == 1 or counts.max() > 1
    assert_same(summed, mean * torch.from_numpy(counts))


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


def test_equal_magnitudes_at_the_cut_are_all_kept_but_no_zeros() -> None:
    layers = in_pieces(torch.tensor([[1.0, -1.0, 0.5, 1.0, 0.0, -1.0]]))
    for density, kept in ((0.3, [1.0, -1.0, 0.0, 1.0, 0.0, -1.0]), (1.0, [1.0, -1.0, 0.5, 1.0, 0.0, -1.0])):
        assert merged_vector("ties", layers, density=density).tolist() == kept
