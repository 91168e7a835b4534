"""The first passes of the merges that stand inside others: what they learn, and what they hold in memory."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from merganser import registry
from merganser.layers import LayerDeltas
from merganser.operators import inner
from tests.laws.layers import Layers
from tests.laws.samples import network


class OneAtATime(Layers):
    """A source that makes each layer anew, and lets nobody keep hold of one while the next is read."""

    def layer(self, name: str) -> LayerDeltas:
        last = self.__dict__.get("last")
        assert last is None or last() is None, "the layer before is still in memory"
        found = super().layer(name)
        assert isinstance(found, LayerDeltas)
        fresh = found.deltas.clone()
        self.__dict__["last"] = weakref.ref(fresh)
        return LayerDeltas(name, found.kind, found.tasks, fresh, found.seed, norms=found.norms)

    def __iter__(self) -> Iterator[LayerDeltas]:
        return map(self.layer, self.names)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ties", {}),
        ("dare", {"combine": "ties"}),
        ("della", {}),
        ("consensus", {"inner": "ties"}),
        ("knots", {"inner": "task_arithmetic"}),
        ("knots", {"inner": "ties"}),
        ("knots", {"inner": "dare_ties"}),
    ],
)
def test_a_first_pass_holds_one_layer_at_a_time(name: str, values: dict[str, Any]) -> None:
    method = registry.get(name)
    method.first_pass(OneAtATime(network(3)), method.validate(name, values))


@pytest.mark.parametrize("name", ["ties", "dare_ties"])
def test_the_sign_that_wins_is_that_of_the_sparse_vector(name: inner.Inner) -> None:
    vector = torch.tensor([[9.0, 8.0, -1.0, -1.0, -1.0]])
    layer = LayerDeltas("w", "vector", ("a",), vector)
    assert inner.survey([layer], name, density=1.0).majority == -1
    assert inner.survey([layer], name, density=0.4, drop_rate=0.0).majority == (1 if name == "ties" else -1)


def test_merging_leaves_the_scale_to_the_method_around_it() -> None:
    layer = LayerDeltas("w", "vector", ("a", "b"), torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
    merged = {name: inner.merge(layer, inner.survey([layer], name)) for name in inner.SCALINGS}
    assert {name: delta.tolist() for name, delta in merged.items()} == {
        "task_arithmetic": [4.0, -1.0],
        "ties": [2.0, -2.0],
        "dare": [4.0, -1.0],
        "dare_ties": [2.0, -2.0],
    }
    assert all(delta.dtype == torch.float64 for delta in merged.values())
