from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given, PerTask, flat, largest_of_each, unflat
from tests.laws.samples import in_pieces, joined, layer_of, merged_vector, network


def reference(layers: Sequence[Given], density: PerTask) -> list[Array]:
    """Mark each task's largest entries over the whole vector; share each position among those who marked it."""
    tau = flat(layers)
    masks = largest_of_each(tau, density, layers)
    shares = masks / np.maximum(masks.sum(0), 1)
    return unflat((shares * tau).sum(0), layers)


def test_regions_that_do_not_overlap_appear_unchanged() -> None:
    tau = torch.tensor([[9.0, -8.0, 0.1, 0.2, 0.3, 0.1], [0.1, 0.2, 7.0, -6.0, 0.1, 0.3]])
    merged = merged_vector("localize_stitch", in_pieces(tau), density=1 / 3)
    assert merged.float().tolist() == [9.0, -8.0, 7.0, -6.0, 0.0, 0.0]


def test_where_regions_overlap_the_tasks_share_by_count() -> None:
    tau = torch.tensor([[9.0, -8.0, 0.1, 0.2], [5.0, 0.1, 6.0, 0.2], [-2.0, 0.1, 0.2, 4.0]])
    merged = merged_vector("localize_stitch", in_pieces(tau), density=0.5)
    assert merged.tolist() == [4.0, -8.0, 6.0, 4.0]


def test_the_density_is_of_the_whole_vector_and_not_each_parameter() -> None:
    layers = [layer_of("square", torch.tensor([[[5.0, 6.0]]])), layer_of("bias", torch.tensor([[1.0, 2.0]]))]
    assert merged_vector("localize_stitch", layers, density=0.5).tolist() == [5.0, 6.0, 0.0, 0.0]


@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_identical_models_give_that_models_region(density: float) -> None:
    alone = network(1)
    crowd = [layer_of(layer.name, layer.deltas.repeat(4, *[1] * (layer.deltas.ndim - 1))) for layer in alone]
    merged = merged_vector("localize_stitch", crowd, density=density)
    assert torch.equal(merged, merged_vector("localize_stitch", alone, density=density))
    assert int((merged != 0).sum()) == int(density * joined(alone).shape[1])


def test_a_task_without_a_change_takes_no_share_of_the_others() -> None:
    tau = torch.tensor([[4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert merged_vector("localize_stitch", in_pieces(tau), density=0.5).tolist() == [4.0, 3.0, 0.0, 0.0]
