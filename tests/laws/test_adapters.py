"""Methods that work on adapters merge them as they merge the products, and never multiply one out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerLowRank
from merganser.linalg.svd import factorise, factorise_low_rank
from tests.laws.layers import merged, norms_of, task_names
from tests.laws.spectra import assert_close, numpy_of

SHAPES = [(24, 24), (40, 16), (16, 40), (1, 9)]
KINDS = [
    "one",
    "two",
    "eight",
    "uneven",
    "identical",
    "opposite",
    "frozen",
    "dependent",
    "beyond full rank",
    "other columns",
]
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("drm_h", {}),
    ("drm_h", {"density": 1.0}),
    ("drm_v", {}),
    ("drm_v", {"density": 0.55}),
    ("iso_c", {"scaling": 1.3}),
    ("iso_cts", {}),
    ("iso_cts", {"common_fraction": 0.2}),
    ("iso_cts", {"common_fraction": 0.0}),
    ("knots", {"density": 1.0}),
    ("knots", {"inner": "ties"}),
    ("knots", {"inner": "task_arithmetic"}),
    ("knots", {"inner": "dare"}),
    ("knots", {"inner": "dare_ties", "drop_rate": 0.4}),
    ("sftm", {"density": 1.0}),
    ("sftm", {"density": 0.2}),
]


class NeverDense(LayerLowRank):
    """A layer of adapters that may not be multiplied out."""

    def dense(self) -> LayerDeltas:
        raise AssertionError("multiplied out")


def adapters(kind: str, shape: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """Make the tasks' adapters, left (M, Q) and right (Q, N)."""
    ranks = {"one": [4], "two": [4, 4], "eight": [2] * 8, "uneven": [1, 5, 3], "beyond full rank": [20, 30]}
    drawn = [adapter(shape, rank, seed) for seed, rank in enumerate(ranks.get(kind, [3, 3, 3]))]
    if kind == "identical":
        drawn[2] = drawn[0]
    if kind == "opposite":
        drawn[2] = (-2 * drawn[0][0], drawn[0][1])
    if kind == "frozen":
        drawn[1] = (torch.zeros_like(drawn[1][0]), drawn[1][1])
    if kind == "dependent":
        drawn[0] = (torch.cat([drawn[0][0], drawn[1][0]], 1), torch.cat([drawn[0][1], drawn[1][1]]))
    if kind == "other columns":
        drawn = [(left, apart(right, task)) for task, (left, right) in enumerate(drawn)]
    return drawn


def apart(right: Tensor, task: int) -> Tensor:
    """Keep every third column, from the task's own on."""
    columns = torch.arange(right.shape[1])
    return right * (columns % 3 == 2 - task)


def adapter(shape: tuple[int, int], rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw one task's adapter of whole numbers times a power of two: its product is not rounded, in float32 neither."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(-127, 128, (shape[0], rank), generator=generator)
    right = torch.randint(-127, 128, (rank, shape[1]), generator=generator)
    return left / 2**13, right / 2**7


def both_forms(drawn: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> tuple[LayerLowRank, LayerDeltas]:
    """Give the same layer as adapters and as products."""
    left, right = zip(*((a.to(dtype), b.to(dtype)) for a, b in drawn), strict=True)
    products = torch.stack([a @ b for a, b in zip(left, right, strict=True)])
    names, norms = task_names(left), norms_of(products)
    dense = LayerDeltas("w", "matrix", names, products, norms=norms)
    return LayerLowRank("w", names, left, right, norms=norms), dense


def in_pairs(cases: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Try each case with each kind; shapes in turn, such that each kind and each case meets every shape."""
    places = [(case, kind) for case in range(len(cases)) for kind in range(len(KINDS))]
    return [(*cases[case], KINDS[kind], SHAPES[(case + kind) % len(SHAPES)]) for case, kind in places]


@pytest.mark.parametrize(("name", "values", "kind", "shape"), in_pairs(VALUES))
def test_adapters_are_merged_as_their_products(
    name: str, values: dict[str, Any], kind: str, shape: tuple[int, int]
) -> None:
    factored, dense = both_forms(adapters(kind, shape), torch.float32)
    (found,), (expected,) = merged(name, factored, **values), merged(name, dense, **values)
    assert found.dtype == torch.float32  # type: ignore[union-attr]
    assert_close(found, numpy_of(expected))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["drm_h", "drm_v", "iso_c", "iso_cts", "knots", "sftm"])
def test_coefficients_weigh_adapters_too(name: str) -> None:
    factored, dense = both_forms(adapters("uneven", (16, 24)), torch.float64)
    values: dict[str, Any] = {"coefficients": {"task0": -0.5, "task2": 2.0}}
    assert_close(merged(name, factored, **values)[0], numpy_of(merged(name, dense, **values)[0]), 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "values"), [case for case in VALUES if case != ("sftm", {"density": 0.2})])
def test_no_adapter_is_multiplied_out(name: str, values: dict[str, Any]) -> None:
    layer, _ = both_forms(adapters("eight", (24, 40)), torch.float32)
    assert registry.get(name).low_rank
    merged(name, NeverDense("w", layer.tasks, layer.left, layer.right, norms=layer.norms), **values)


@pytest.mark.parametrize(("name", "kind", "shape"), in_pairs([("tsv_m",), ("star",)]))
def test_the_factors_of_adapters_are_merged_as_those_of_their_products(
    name: str, kind: str, shape: tuple[int, int]
) -> None:
    factored, dense = both_forms(adapters(kind, shape), torch.float32)
    known = tuple(factorise_low_rank(*sides) for sides in zip(factored.left, factored.right, strict=True))
    whole = tuple(factorise(delta) for delta in dense.deltas)
    found, expected = (merged(name, LayerFactors("w", dense.tasks, factors))[0] for factors in (known, whole))
    assert_close(found, numpy_of(expected))  # type: ignore[arg-type]


def test_adapters_that_changed_nothing_leave_the_base() -> None:
    nothing = [(0 * left, right) for left, right in adapters("two", (8, 6))]
    for name in ("drm_h", "drm_v", "iso_c", "iso_cts", "knots", "sftm"):
        values = {"density": 1.0} if name == "sftm" else {}
        (found,) = merged(name, both_forms(nothing, torch.float32)[0], **values)
        assert not np.any(numpy_of(found))  # type: ignore[arg-type]
