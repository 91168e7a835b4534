"""Each parameter of each method changes some merge: one that does nothing would pass every other test."""

from collections.abc import Iterable, Iterator
from itertools import chain, combinations, product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch
from pydantic.fields import FieldInfo
from torch import Tensor

from merganser import registry
from merganser.errors import InputError
from tests.laws.layers import matrices
from tests.laws.test_registry_properties import FEW, Suite, models, suite_of

OTHERS = 2  # that may have to have other values than their defaults, so that a parameter matters


def values_of(kind: Any, about: Iterable[Any], tasks: tuple[str, ...]) -> list[Any]:
    """List values of a type that a parameter accepts, within its bounds; raise TypeError for a type unknown here."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        more = chain.from_iterable(each.metadata if isinstance(each, FieldInfo) else [each] for each in arguments[1:])
        return values_of(arguments[0], [*about, *more], tasks)
    if origin in (Union, UnionType):
        return [value for each in arguments for value in values_of(each, about, tasks)]
    if origin is Literal:
        return list(arguments)
    if origin is dict:
        numbers = values_of(arguments[1], about, tasks)
        return [dict(zip(tasks, numbers * len(tasks), strict=False)), dict.fromkeys(tasks, numbers[-1])]
    if kind in (bool, NoneType):
        return [True, False] if kind is bool else [None]
    if kind not in (int, float):
        raise TypeError(f"{kind}: say here which values it has")
    bounds = {
        name: float(getattr(each, name)) for each in about for name in ("ge", "gt", "le", "lt") if hasattr(each, name)
    }
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if kind is int:
        return [int(low or 0) + step for step in (0, 1, 2, 4)]
    if low is None:
        return [0.7, -1.5]
    return [low + share * ((high if high is not None else low + 2) - low) for share in (0.05, 0.35, 0.85)]


def variations(name: str, tasks: tuple[str, ...]) -> dict[str, list[list[Any]]]:
    """List, by parameter, the values of each type that it accepts, without the default."""
    found = {}
    for key, field in registry.get(name).parameters.model_fields.items():
        kind = field.annotation
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
        by_type = [
            [value for value in values_of(each, field.metadata, tasks) if value != field.default] for each in kinds
        ]
        found[key] = [values for values in by_type if values]
    return found


def settings(varied: dict[str, list[list[Any]]]) -> Iterator[dict[str, Any]]:
    """List values for some parameters, the others having their defaults: first for none, then for one, for two.

    Of a choice these are all options, of any other type one value.
    """
    chosen = {
        key: [value for of in by_type for value in (of if isinstance(of[0], str) else [of[len(of) // 2]])]
        for key, by_type in varied.items()
    }
    for count in range(OTHERS + 1):
        for keys in combinations(chosen, count):
            for values in product(*(chosen[key] for key in keys)):
                yield dict(zip(keys, values, strict=True))


def merge(name: str, suite: Suite, values: dict[str, Any]) -> list[Tensor] | None:
    """Merge; None where the values do not go together."""
    try:
        return models(name, suite.layers, values)
    except InputError:
        return None


def differ(merges: Iterable[list[Tensor] | None]) -> bool:
    """Tell whether some of the merges differ; no more of them are made than are needed."""
    made = (each for each in merges if each is not None)
    first = next(made, [])
    return any(not all(map(torch.equal, first, other)) for other in made)


def with_a_large_matrix(suite: Suite) -> Suite:
    """Add a matrix of some size, whose parts of lower rank take fewer bytes than the whole, in a second block."""
    generator = torch.Generator().manual_seed(0)
    large = matrices([0.01 * torch.randn(80, 60, generator=generator) for _ in suite.kinds], "blocks.1.large.weight")
    return Suite((*suite.layers, large), suite.kinds)


PARAMETERS = [
    (name, key)
    for name in registry.names()
    for key in registry.get(name).parameters.model_fields
    if key not in registry.get(name).not_by_layer  # it is of what is written beside the merge
]


@pytest.mark.parametrize(("name", "key"), PARAMETERS)
def test_each_parameter_changes_some_merge_by_each_type_of_its_values(name: str, key: str) -> None:
    suite = with_a_large_matrix(suite_of(["full", "full", "full"][: registry.get(name).most_tasks], seed=0, shapes=FEW))
    varied = variations(name, suite.layers[0].tasks)
    for values in varied.pop(key):
        given = [{}, *({key: value} for value in values)]
        found = (differ(merge(name, suite, others | each) for each in given) for others in settings(varied))
        assert any(found), f"{values} change nothing"
