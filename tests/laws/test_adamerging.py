"""AdaMerging's merge of the values that its learner begins with; tests/learning holds what it learns."""

from collections.abc import Sequence

import pytest

from merganser import registry
from merganser.errors import InputError
from merganser.inputs.layers import GivenLayers, Learned
from tests.laws.layers import Layers
from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, joined, merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Add with the starting coefficient."""
    return [0.3 * layer.deltas.sum(0) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_before_the_first_step_it_is_task_arithmetic_at_the_starting_coefficient(tasks: int) -> None:
    layers = network(tasks)
    assert_same(merged_vector("adamerging", layers), 0.3 * joined(layers).sum(0))


@pytest.mark.parametrize(
    ("learned", "message"),
    [
        (None, "adamerging: applies learned values; declare them under learned"),
        (Learned("concrete", {}, (), (), {}), "the values were learned by concrete; merge by the method of that name"),
        (Learned("adamerging", {}, (), ("x",), {}), "the values were learned of other parameters; learn them again"),
    ],
)
def test_values_that_are_not_of_this_learner_and_these_parameters_are_refused(
    learned: Learned | None, message: str
) -> None:
    layers = Layers(network(2))
    with pytest.raises(InputError, match=message):
        registry.get("adamerging").bind({}, GivenLayers(layers, {"learned": learned}))
