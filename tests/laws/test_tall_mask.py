from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.errors import InputError
from merganser.overlays.parts import Parts
from tests.laws.layers import delta_of, merged
from tests.laws.references import Array, Given, PerTask, agreeing, flat, unflat
from tests.laws.samples import in_pieces, joined, network
from tests.laws.test_ties import trimmed

CASES = [
    {"tall_lambda": {"task0": 0.2, "task1": 0.6}},
    {"inner": "ties", "tall_lambda": {"task1": 0.0}, "density": 0.5},
]


def reference(
    layers: Sequence[Given], *, inner: str, density: PerTask, tall_lambda: float | Mapping[str, float]
) -> list[Array]:
    """The merged vector, of ties the sum of those that agree, where a task's own is large beside the rest of it."""
    tau = flat(layers)
    merged_ = tau.sum(0) if inner == "task_arithmetic" else agreeing(trimmed(layers, density)).sum(0)
    found = []
    for task, own in zip(layers[0].tasks, tau, strict=True):
        factor = tall_lambda.get(task, 0.4) if isinstance(tall_lambda, Mapping) else tall_lambda
        found.append((np.abs(own) >= factor * np.abs(merged_ - own)) * merged_)
    return unflat(np.stack(found), layers)


def whole_models(tasks: int, **values: object) -> torch.Tensor:
    layers = network(tasks)
    results = zip(layers, merged("tall_mask", *layers, **values), strict=True)
    pieces = [(x, parts) for x, parts in results if isinstance(parts, Parts)]
    return torch.stack(
        [torch.cat([delta_of(p, t, tuple(x.deltas.shape[1:])).flatten() for x, p in pieces]) for t in layers[0].tasks]
    )


@pytest.mark.parametrize("values", [{}, {"inner": "ties", "density": 1.0}, {"tall_lambda": 3.0}])
def test_with_one_task_the_mask_takes_it_all(values: dict[str, object]) -> None:
    assert torch.equal(whole_models(1, **values).double(), joined(network(1)))


def test_lambda_zero_gives_every_task_the_whole_merge() -> None:
    assert torch.equal(
        whole_models(3, tall_lambda=0.0).double(), joined(network(3)).sum(0).float().double().expand(3, -1)
    )


def test_a_map_gives_each_task_its_own_lambda() -> None:
    mapped = whole_models(3, tall_lambda={"task0": 0.2, "task2": 1.5})
    for task, value in enumerate((0.2, 0.4, 1.5)):
        assert torch.equal(mapped[task], whole_models(3, tall_lambda=value)[task])


def test_a_lambda_for_no_task_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"tall_lambda: no such task: task9; the tasks are task0, task1"):
        merged("tall_mask", *network(2), tall_lambda={"task9": 0.3})


@pytest.mark.parametrize("nonsense", [{"task0": -0.1}, {"task0": float("nan")}, {"task0": "0.2"}, -1.0])
def test_a_lambda_below_zero_is_refused(nonsense: object) -> None:
    with pytest.raises(InputError, match=r"entry\.tall_lambda"):
        registry.get("tall_mask").validate("entry", {"tall_lambda": nonsense})


def test_tall_mask_by_hand() -> None:
    layers = in_pieces(torch.tensor([[4.0, 1.0, 2.0, 0.0], [1.0, -3.0, 2.0, 1.0]]))
    found = [p for p in merged("tall_mask", *layers, tall_lambda=0.5) if isinstance(p, Parts)]
    models = [
        torch.cat([delta_of(p, t, s).flatten() for p, s in zip(found, [(1, 2), (2,)], strict=True)])
        for t in layers[0].tasks
    ]
    # the sum is [5, -2, 4, 1]; each task is held to half of the other
    assert models[0].tolist() == [5, 0, 4, 0]
    assert models[1].tolist() == [0, -2, 4, 1]


def test_tall_mask_over_ties_by_hand() -> None:
    layers = in_pieces(torch.tensor([[4.0, 1.0, 2.0, 0.0], [1.0, -3.0, 2.0, 1.0]]))
    values = {"inner": "ties", "density": 1.0, "tall_lambda": 0.5}
    found = [p for p in merged("tall_mask", *layers, **values) if isinstance(p, Parts)]
    models = [
        torch.cat([delta_of(p, t, s).flatten() for p, s in zip(found, [(1, 2), (2,)], strict=True)])
        for t in layers[0].tasks
    ]
    # who agrees adds up to [5, -3, 4, 1]; each task is held to half of what that has beside it
    assert models[0].tolist() == [5, 0, 4, 0]
    assert models[1].tolist() == [0, -3, 4, 1]
