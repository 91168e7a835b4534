from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given, flat, unflat
from tests.laws.samples import assert_same, in_pieces, layer_of, merged_vector, network


def reference(
    layers: Sequence[Given], *, eps: float, boost: float, limit: float, granularity: str, scaling: float
) -> list[Array]:
    """Average shared entries and strengthen own ones: of the whole vector, or of each parameter by itself."""
    if granularity == "parameter":
        return [one for layer in layers for one in _whole([layer], eps, boost, limit, scaling)]
    return _whole(layers, eps, boost, limit, scaling)


def _whole(layers: Sequence[Given], eps: float, boost: float, limit: float, scaling: float) -> list[Array]:
    tau = flat(layers)
    changed = np.abs(tau) > eps
    count = changed.sum(0)
    merged = np.where(count > 1, (tau * changed).sum(0) / np.maximum(count, 1), 0)
    for task, own in zip(tau, changed, strict=True):
        alone, shared = own & (count == 1), own & (count > 1)
        if alone.any():
            merged += np.where(alone, (1 + boost * min(limit, shared.sum() / alone.sum())) * task, 0)
    return unflat(scaling * merged, layers)


CASES = [{"eps": 0.01}, {"eps": 0.01, "limit": 5.0, "boost": 1.0, "granularity": "parameter"}]


def test_ram_by_hand() -> None:
    # The second entry is shared; the first task has two of its own, the second one: it shares half and all of these.
    layers = in_pieces(torch.tensor([[1.0, 2.0, 3.0, 0.0], [0.1, 4.0, 0.0, -5.0]]))
    values = {"eps": 0.1, "boost": 0.5, "limit": 0.8}
    assert merged_vector("ram", layers, **values).tolist() == pytest.approx([1.25, 3.0, 3.75, -5.0 * 1.4])
    plain = merged_vector("ram", layers, eps=0.1, boost=0.0)
    assert plain.tolist() == pytest.approx([1.0, 3.0, 3.0, -5.0])


def test_each_parameter_may_have_a_ratio_of_its_own() -> None:
    layers = [
        layer_of("square", torch.tensor([[[1.0, 2.0]], [[0.0, 4.0]]])),
        layer_of("bias", torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
    ]
    values = {"boost": 1.0, "limit": 9.0, "granularity": "parameter"}
    assert merged_vector("ram", layers, **values).tolist() == pytest.approx([2.0, 3.0, 1.0, 1.0])
    values["granularity"] = "model"
    assert merged_vector("ram", layers, **values).tolist() == pytest.approx([4 / 3, 3.0, 4 / 3, 4 / 3])


def test_tasks_that_change_different_entries_are_added_up() -> None:
    whole = torch.randn(60, generator=torch.Generator().manual_seed(0))
    masks = torch.arange(60) % 3 == torch.arange(3).unsqueeze(1)
    assert_same(merged_vector("ram", in_pieces(whole * masks), boost=5.0), whole.double())


def test_without_a_boost_what_all_change_is_averaged() -> None:
    layers = network(4)
    assert_same(merged_vector("ram", layers, boost=0.0, eps=0.0), merged_vector("average", layers))
