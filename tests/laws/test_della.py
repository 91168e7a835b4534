from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas
from merganser.operators.drop import rates_by_magnitude
from tests.laws.layers import uniforms
from tests.laws.references import Array, Given, PerTask, each_task, elected_mean, flat, unflat
from tests.laws.samples import assert_same, joined, merged_vector, network


def reference(layers: Sequence[Given], drop_rate: PerTask, eps: float, scaling: float) -> list[Array]:
    """Drop by the rank in the row, rescale, elect, average."""
    rates = each_task(drop_rate, layers)
    kept = [
        layer._replace(deltas=np.stack([sampled(layer, t, rate, eps) for t, rate in enumerate(rates)]))
        for layer in layers
    ]
    return unflat(scaling * elected_mean(flat(kept)), layers)


def sampled(layer: Given, t: int, drop_rate: float, eps: float) -> Array:
    """Drop and rescale one task's entries, row by row."""
    delta = layer.deltas[t]
    numbers = uniforms(delta.shape, seed=layer.seed, task=layer.tasks[t], parameter=layer.name).numpy()
    rows, drawn = (np.atleast_1d(x).reshape(-1, np.atleast_1d(x).shape[-1]) for x in (delta, numbers))
    found = np.zeros_like(rows)
    for r, row in enumerate(rows):
        largest_first = sorted(range(len(row)), key=lambda c: (-abs(row[c]), c))
        for place, c in enumerate(largest_first):
            rate = drop_rate - eps / 2 + eps / len(row) * place
            found[r, c] = row[c] / (1 - rate) if drawn[r, c] >= rate else 0.0
    return found.reshape(delta.shape)


@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize("drop_rate", [0.5, 0.8])
def test_without_a_spread_della_is_dare_combined_by_ties(tasks: int, drop_rate: float) -> None:
    layers = network(tasks)
    della = merged_vector("della", layers, drop_rate=drop_rate, eps=0.0)
    assert_same(della, merged_vector("dare", layers, drop_rate=drop_rate, combine="ties"), 1e-6)


def test_larger_entries_of_a_row_are_dropped_less() -> None:
    rates = rates_by_magnitude(torch.tensor([[1.0, -4.0, 2.0, 0.0], [-8.0, 9.0, 9.0, -9.0]]), 0.8, 0.1)
    places = torch.tensor([[2, 0, 1, 3], [3, 0, 1, 2]])  # of equal magnitudes the first comes first
    torch.testing.assert_close(rates, 0.75 + 0.025 * places)


def test_a_vector_is_one_row_and_a_number_a_row_of_one() -> None:
    torch.testing.assert_close(rates_by_magnitude(torch.tensor([1.0, 2.0]), 0.5, 0.2), torch.tensor([0.5, 0.4]))
    torch.testing.assert_close(rates_by_magnitude(torch.tensor(3.0), 0.5, 0.2), torch.tensor(0.4))


def test_the_mean_over_seeds_is_the_undropped_delta() -> None:
    drop_rate, eps, seeds, layers = 0.7, 0.4, 200, network(1)[4:6]
    runs = [
        merged_vector("della", [replace(layer, seed=seed) for layer in layers], drop_rate=drop_rate, eps=eps)
        for seed in range(seeds)
    ]
    tau, worst = joined(layers)[0], drop_rate + eps / 2
    bound = 6 * (tau.square() * worst / ((1 - worst) * seeds)).sqrt()
    assert ((torch.stack(runs).mean(0) - tau).abs() <= bound).all()


def test_della_by_hand() -> None:
    numbers = uniforms((2,), seed=0, task="task0", parameter="bias").tolist()
    layer = LayerDeltas("bias", "vector", ("task0",), torch.tensor([[1.0, -3.0]]))
    rates = [0.6, 0.4]  # 0.6 - 0.4 / 2 for the larger, half of 0.4 more for the smaller
    expected = [x / (1 - p) if u >= p else 0.0 for x, p, u in zip([1.0, -3.0], rates, numbers, strict=True)]
    merged = merged_vector("della", [layer], drop_rate=0.6, eps=0.4)
    assert merged.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("drop_rate", "eps"), [(0.01, 0.1), (0.97, 0.1), (0.5, 1.2)])
def test_a_spread_that_leaves_the_probabilities_is_refused(drop_rate: float, eps: float) -> None:
    with pytest.raises(InputError, match=r"eps: .* below"):
        merged_vector("della", network(2), drop_rate=drop_rate, eps=eps)
