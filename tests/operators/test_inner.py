"""The merges that stand inside others: what their first passes learn, and what they leave to the method around them."""

import pytest
import torch

from merganser.inputs.layers import LayerDeltas
from merganser.operators import inner
from tests.laws.layers import Layers


@pytest.mark.parametrize("name", ["ties", "dare_ties"])
def test_the_sign_that_wins_is_that_of_the_sparse_vector(name: inner.Inner) -> None:
    vector = torch.tensor([[9.0, 8.0, -1.0, -1.0, -1.0]])
    layer = LayerDeltas("w", "vector", ("a",), vector)
    assert inner.survey(Layers([layer]), name, density=1.0).majority == -1
    assert inner.survey(Layers([layer]), name, density=0.4, drop_rate=0.0).majority == (1 if name == "ties" else -1)


def test_merging_leaves_the_scale_to_the_method_around_it() -> None:
    layer = LayerDeltas("w", "vector", ("a", "b"), torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
    merged = {name: inner.merge(layer, inner.survey(Layers([layer]), name)) for name in inner.SCALINGS}
    assert {name: delta.tolist() for name, delta in merged.items()} == {
        "task_arithmetic": [4.0, -1.0],
        "ties": [2.0, -2.0],
        "dare": [4.0, -1.0],
        "dare_ties": [2.0, -2.0],
    }
    assert all(delta.dtype == torch.float64 for delta in merged.values())
