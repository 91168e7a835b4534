"""Singular vectors of zero singular values are arbitrary: whatever LAPACK driver made them, the merge is the same."""

from collections.abc import Callable

import pytest
import scipy.linalg
import torch
from torch import Tensor

from merganser import registry
from merganser.inputs.layers import Layer, LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise
from merganser.overlays.parts import Parts
from tests.laws.layers import matrices, merged, task_names
from tests.support import each

Driver = Callable[[Tensor], Factors]
SHAPES = [(24, 24), (40, 16), (16, 40)]


def gesdd(delta: Tensor) -> Factors:
    """Decompose by divide and conquer."""
    return Factors(*map(torch.from_numpy, scipy.linalg.svd(delta.numpy(), full_matrices=False, lapack_driver="gesdd")))


def gesvd(delta: Tensor) -> Factors:
    """Decompose by QR iteration."""
    return Factors(*map(torch.from_numpy, scipy.linalg.svd(delta.numpy(), full_matrices=False, lapack_driver="gesvd")))


DRIVERS: dict[str, Driver] = {"gesdd": gesdd, "gesvd": gesvd, "ours": factorise}


def low_rank(shape: tuple[int, int], rank: int, generator: torch.Generator) -> Tensor:
    """Draw a float32 matrix whose rank is exact: whole numbers times a power of two, small enough not to be rounded."""
    left = torch.randint(-127, 128, (shape[0], rank), generator=generator)
    right = torch.randint(-127, 128, (rank, shape[1]), generator=generator)
    return (left @ right).float() / 2**20


def deficient(case: str, shape: tuple[int, int]) -> list[Tensor]:
    """Make the task matrices of a rank-deficient layer."""
    generator = torch.Generator().manual_seed(7)
    full = min(shape)
    ranks = {"lora": [2, 2, 2], "uneven": [1, 3, full], "one frozen": [4, 0, 4], "twins": [3, 3, 3]}
    deltas = [low_rank(shape, rank, generator) for rank in ranks.get(case, [full] * 3)]
    if case == "twins":
        deltas[2] = deltas[0].clone()
    if case == "frozen rows":
        for delta in deltas:
            delta[::2] = 0
    return deltas


every_shape = each("shape", SHAPES)
every_case = each("case", ["lora", "uneven", "one frozen", "twins", "frozen rows"])


def by_driver(driver: Driver, deltas: list[Tensor]) -> LayerFactors:
    """Decompose a layer by a driver."""
    return LayerFactors("w", task_names(deltas), tuple(driver(delta) for delta in deltas))


def models(result: Tensor | Parts, shape: tuple[int, int]) -> Tensor:
    """Give the merged delta, or each task's own below one another."""
    return result if isinstance(result, Tensor) else torch.cat([part.delta(shape) for part in result.tasks.values()])


def assert_agree(results: list[Tensor]) -> None:
    """Compare merges with the first one, relative to its size."""
    for result in results[1:]:
        assert (result.double() - results[0].double()).norm() <= 1e-5 * results[0].double().norm()


@every_shape
@every_case
@pytest.mark.parametrize("name", [name for name in registry.names() if registry.get(name).reads == "svd"])
def test_a_merge_of_factors_does_not_depend_on_the_driver(name: str, case: str, shape: tuple[int, int]) -> None:
    deltas = deficient(case, shape)
    assert_agree([models(merged(name, by_driver(driver, deltas))[0], shape) for driver in DRIVERS.values()])


@every_shape
@every_case
@pytest.mark.parametrize("name", ["iso_c", "iso_cts", "cart", "knots", "drm_h", "drm_v"])
def test_a_merge_of_deltas_does_not_depend_on_the_decomposition(name: str, case: str, shape: tuple[int, int]) -> None:
    """A float32 layer goes through its Gram matrix where that is exact, a float64 one through LAPACK's gesdd."""
    deltas = deficient(case, shape)
    by_gram = merged(name, matrices(deltas))[0]
    assert_agree([by_gram, merged(name, matrices([delta.double() for delta in deltas]))[0]])


@every_shape
@every_case
def test_iso_c_equals_its_formula_by_each_driver(case: str, shape: tuple[int, int]) -> None:
    deltas = deficient(case, shape)
    summed = torch.stack(deltas).sum(0)
    formulas = []
    for driver in (gesdd, gesvd):
        u, s, vh = driver(summed)
        rank = int((s > max(shape) * torch.finfo(torch.float32).eps * s[0]).sum())
        formulas.append(s.sum() / min(shape) * (u[:, :rank] @ vh[:rank]))
    assert_agree([merged("iso_c", matrices(deltas))[0], *formulas])


def by_position(name: str) -> bool:
    """Tell whether a method draws or breaks ties by an entry's position: a shuffled matrix is another one to it."""
    method = registry.get(name)
    return method.cost in ("elementwise", "fourier transform") or name == "sftm" or method.draws is not None


@every_shape
@every_case
@pytest.mark.parametrize("name", [name for name in registry.names() if not by_position(name)])
def test_shuffled_rows_and_columns_give_the_shuffled_merge(name: str, case: str, shape: tuple[int, int]) -> None:
    """To a decomposition, a shuffled matrix is the same mathematics with other rounding."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randperm(n, generator=generator) for n in shape)
    deltas = deficient(case, shape)
    shuffled = [delta[rows][:, columns] for delta in deltas]
    straight = models(merged(name, as_read(name, deltas))[0], shape).view(-1, *shape)
    again = models(merged(name, as_read(name, shuffled))[0], shape).view(-1, *shape)
    assert_agree([straight[:, rows][:, :, columns], again])


def as_read(name: str, deltas: list[Tensor]) -> Layer:
    """Give a layer in the form that the method reads."""
    return by_driver(factorise, deltas) if registry.get(name).factored else matrices(deltas)
