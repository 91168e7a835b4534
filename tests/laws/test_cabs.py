from collections.abc import Sequence
from math import ceil

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given
from tests.laws.samples import in_pieces, joined, merged_vector, network


def reference(layers: Sequence[Given], *, density: float, block: int, scaling: float) -> list[Array]:
    """Let the tasks choose in turn, in each block of each parameter."""
    merged = []
    for layer in layers:
        flat = layer.deltas.reshape(len(layer.tasks), -1)
        found = [chosen(flat[:, at : at + block], density) for at in range(0, flat.shape[1], block)]
        merged.append(scaling * np.concatenate(found).reshape(layer.deltas.shape[1:]))
    return merged


def chosen(deltas: Array, density: float) -> Array:
    """Add up what each task keeps: its largest entries that are free, then its largest ones that are not."""
    count = ceil(density * deltas.shape[1] - 1e-9)
    taken, summed = np.zeros(deltas.shape[1], bool), np.zeros(deltas.shape[1])
    for delta in deltas:
        sizes = np.abs(delta)
        kept = np.zeros_like(taken)
        for group, wanted in ((~taken, count), (taken, count - (~taken).sum())):
            if wanted > 0 and group.any():
                least = np.sort(sizes[group])[::-1][min(wanted, group.sum()) - 1]
                kept |= group & (sizes >= least) & (sizes > 0)
        summed += kept * delta
        taken |= kept
    return summed


CASES = [{"density": 0.5, "block": 4}, {"density": 0.2, "block": 16}]


def test_cabs_by_hand() -> None:
    # Blocks of four and two. Half of a block: the first task keeps 5 -4 | 2, the second what it has beside these.
    layers = in_pieces(torch.tensor([[5.0, -4.0, 1.0, 0.5, 1.0, 2.0], [7.0, 3.0, 2.0, -1.0, 0.5, 9.0]]))
    whole = [layers[0].deltas.flatten(1), layers[1].deltas]
    one = in_pieces(torch.cat(whole, 1).repeat(1, 2))[0]  # all six entries as one parameter
    assert merged_vector("cabs", [one], density=0.5, block=4).tolist() == [5.0, -4.0, 2.0, -1.0, 0.5, 2.0]
    # At three of four one entry is free: the second task takes it, and its two largest beside it.
    found = merged_vector("cabs", [one], density=0.75, block=4)
    assert found.tolist() == [12.0, -1.0, 1.0, -1.0, 1.5, 11.0]


@pytest.mark.parametrize("tasks", [2, 4])
def test_tasks_that_keep_their_share_or_less_have_no_entry_in_common(tasks: int) -> None:
    layers = [layer for layer in network(tasks) if layer.deltas[0].numel() % 4 == 0]
    found, tau = merged_vector("cabs", layers, density=1 / tasks, block=4), joined(layers)
    nearest = (tau - found).abs().amin(0)
    assert float(nearest[found != 0].max()) < 1e-9
    assert int((found != 0).sum()) == tau.shape[1]


def test_one_task_at_density_one_is_its_own_model() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("cabs", layers, density=1.0), joined(layers)[0])


def test_the_order_of_the_tasks_matters() -> None:
    layers = in_pieces(torch.tensor([[5.0, 4.0, 0.0, 0.0], [7.0, 3.0, 0.0, 0.0]]))
    turned = in_pieces(torch.tensor([[7.0, 3.0, 0.0, 0.0], [5.0, 4.0, 0.0, 0.0]]))
    found, other = (merged_vector("cabs", each, density=0.5).tolist() for each in (layers, turned))
    assert (found, other) == ([5.0, 3.0, 0.0, 0.0], [7.0, 4.0, 0.0, 0.0])
