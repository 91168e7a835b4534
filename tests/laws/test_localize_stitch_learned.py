"""The merge of the regions that learning begins with; tests/learning holds what it learns."""

from collections.abc import Sequence

import pytest
import torch

from tests.laws import test_localize_stitch
from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Stitch what is kept without data."""
    return test_localize_stitch.reference(layers, density=0.01)


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_before_the_first_step_it_is_the_merge_without_data(tasks: int) -> None:
    layers = network(tasks)
    assert torch.equal(merged_vector("localize_stitch_learned", layers), merged_vector("localize_stitch", layers))
