"""Every registered method computes its formula: real checkpoints through the library, against a float64 reference.

A law test `test_<method>.py` holds the formula as `reference`, and in `CASES` the parameters worth trying beyond the
defaults, each choice, and other values of each parameter, which are read off its type and its bounds.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.errors import InputError
from merganser.merging.method import Method
from merganser.overlays.parts import Parts
from tests.laws.checkpoints import SPECTRA, Models, write_alike, write_models, write_spectrum
from tests.laws.layers import delta_of, with_few_steps
from tests.laws.references import Array, Given
from tests.laws.test_parameters import settings, variations
from tests.laws.test_registry_properties import choices, every_method, methods_that
from tests.support import each

TOLERANCE = 1e-5  # of a merged delta's norm, as a whole and of each parameter
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COEFFICIENTS = {"task0": 0.5, "task1": -1.5}
POSITIVE = {"task0": 0.5, "task1": 2.0}
BY_BYTES = "adaptive"  # the share that fits into a number of bytes: tests/overlays/test_budget.py holds it to these
NUDGE, MOVED = 1e-14, 1e-6  # of each matrix; what moves further when nudged is not defined by its formula


def by_task(method: Method) -> set[str]:
    """Name the parameters that may be a map by task."""
    fields = method.parameters.model_fields
    return {key for key, field in fields.items() if dict in map(get_origin, get_args(field.annotation))}


def numbers_of(method: Method, tasks: tuple[str, ...]) -> dict[str, list[Any]]:
    """List other numbers of each parameter that is one, the middle one first."""
    found: dict[str, list[Any]] = {}
    for key, by_type in variations(method.name, tasks).items():
        numbers = [value for values in by_type for value in values if type(value) in (int, float)]
        middle = len(numbers) // 2
        found |= {key: numbers[middle:] + numbers[:middle]} if numbers else {}
    return found


def fitting(
    method: Method, models: Models, candidates: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """Return the first values that the method accepts together, and their merge; None if it accepts none.

    Some bound each other.
    """
    for values in candidates:
        try:
            return values, merged(method, method.validate(method.name, with_few_steps(method, values)), models)
        except InputError:
            continue
    return None


def all_others(method: Method, models: Models, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice together with another value of every number."""
    numbers = numbers_of(method, models.tasks)
    candidates = (dict(choice) | dict(zip(numbers, each, strict=True)) for each in product(*numbers.values()))
    found = fitting(method, models, candidates)
    assert found is not None, f"{method.name} accepts no other numbers together"
    return found[0]


def own_by_layer(method: Method, models: Models) -> dict[str, Any]:
    """Return other values of all parameters that change what a layer's vector is merged into, scaling apart."""
    more = {} if method.weighted or "coefficients" not in method.parameters.model_fields else {"coefficients": POSITIVE}
    found = all_others(method, models, {}) | more
    left = set(method.not_by_layer) | ({"scaling"} if method.weighted else set())
    return {key: value for key, value in found.items() if key not in left}


ModelsOf = Callable[[str, int], Models]


@pytest.fixture(scope="session")
def models_of(tmp_path_factory: pytest.TempPathFactory) -> ModelsOf:
    """Give the models of a dtype and a number of tasks, written when a test first asks for them."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def written(dtype: str, tasks: int) -> Models:
        folder = root / f"{dtype}-{tasks}"
        folder.mkdir()
        return write_models(folder, DTYPES[dtype], tasks)

    return written


# Each dtype, and each number of tasks; the tests below try 2 and 5 tasks in float32 and in bfloat16.
@every_method
@each("drawn", [("float32", 1), ("bfloat16", 2), ("float64", 3), ("float16", 8)])
def test_a_method_computes_its_formula(name: str, drawn: tuple[str, int], models_of: ModelsOf) -> None:
    agree(name, registry.get(name).validate(name, {}), models_of(*drawn))


@every_method
def test_a_method_computes_its_formula_whatever_its_parameters(name: str, models_of: ModelsOf) -> None:
    """Each choice with the default numbers and with others, of 2 tasks and of 5 in turn; what a law names of both."""
    for number, choice in enumerate(choices(name)):
        one, other = (models_of("float32", tasks) for tasks in ((2, 5), (5, 2))[number % 2])
        agree(name, choice, one)
        agree(name, all_others(registry.get(name), first_tasks(name, other), choice), other)
    for values in getattr(law_of(name), "CASES", []):
        for tasks in (2, 5):
            agree(name, values, models_of("float32", tasks))


@methods_that(lambda method: method.weighted)
@each("tasks", [2, 5])
def test_a_method_computes_its_formula_of_weighted_deltas(name: str, tasks: int, models_of: ModelsOf) -> None:
    weights: list[dict[str, Any]] = [{"coefficients": COEFFICIENTS}, {"coefficients": "inverse_norm"}]
    if "scaling" in registry.get(name).parameters.model_fields:
        weights += [{"scaling": COEFFICIENTS}, {"scaling": COEFFICIENTS, "coefficients": {"task0": 3.0}}]
    for values in weights:
        agree(name, values, models_of("bfloat16", tasks))


EVERY_PARAMETER = [(name, key) for name in registry.names() for key in registry.get(name).parameters.model_fields]


@pytest.mark.parametrize(("name", "key"), EVERY_PARAMETER)
def test_a_method_computes_its_formula_with_each_value_of_a_parameter(name: str, key: str, models_of: ModelsOf) -> None:
    """The others have their defaults or, where these do not go with the value, the first others that do."""
    method, models = registry.get(name), first_tasks(name, models_of("float32", 3))
    varied = variations(name, models.tasks)
    for values in varied.pop(key):
        if values == [BY_BYTES]:
            continue
        found = [fitting(method, models, (others | {key: value} for others in settings(varied))) for value in values]
        tried = [some for some in found if some is not None]
        assert tried, f"{values}: it accepts none of them"
        for accepted, computed in tried:
            agree(name, accepted, models, computed)


@methods_that(lambda method: bool(by_task(method) - {"coefficients", "scaling"}))
def test_a_method_computes_its_formula_with_a_value_for_each_task(name: str, models_of: ModelsOf) -> None:
    method, models = registry.get(name), models_of("float32", 2)
    varied = variations(name, models.tasks)
    own = {key: maps_of(varied[key]) for key in sorted(by_task(method) - {"coefficients", "scaling"})}
    maps = [dict(zip(own, some, strict=True)) for some in product(*own.values())]
    for values in choices(name):
        found = fitting(method, models, (values | some for some in maps))
        assert found is not None, f"{name} accepts none of {maps}"
        accepted, computed = found
        agree(name, accepted, models, computed)


def maps_of(by_type: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the maps by task among a parameter's values."""
    return [value for values in by_type for value in values if isinstance(value, dict)]


@methods_that(lambda method: bool(method.parameters.model_fields.keys() - set(method.not_by_layer) - {"scaling"}))
def test_layers_with_values_of_their_own_are_a_vector_of_their_own(name: str, models_of: ModelsOf) -> None:
    method, models = registry.get(name), first_tasks(name, models_of("float32", 2))
    found = all_others(method, models, {})
    whole = {key: found[key] for key in method.not_by_layer if key in found}
    inner, outer = own_by_layer(method, models), method.validate(name, whole)
    if not inner:
        pytest.skip("it has no number but its scaling")
    values = method.validate(name, whole | {"layers": {"blocks.*": inner}})
    expectations: dict[str, Any] = {}
    for inside, chosen in ((True, method.validate(name, whole | inner)), (False, outer)):
        some = [layer for layer in models.given() if layer.name.startswith("blocks.") == inside]
        expectations |= zip((layer.name for layer in some), expected(name, chosen, some), strict=True)
    compare(merged(method, values, models), expectations, values)


@methods_that(lambda method: method.weighted)
def test_layers_with_a_scaling_or_weights_of_their_own_stay_in_the_whole_vector(name: str, models_of: ModelsOf) -> None:
    method, models = registry.get(name), models_of("float32", 2)
    scaled = {"scaling": 0.7} if "scaling" in method.parameters.model_fields else {}
    patterns = {"blocks.0-7.*": {"coefficients": COEFFICIENTS} | scaled, "*.bias": {"coefficients": {"task1": 3.0}}}
    values = method.validate(name, {"layers": patterns})
    inside = {layer.name: layer.name.startswith("blocks.") for layer in models.given()}
    weights = {
        at: {"task1": 3.0} if at.endswith(".bias") else COEFFICIENTS if is_in else {} for at, is_in in inside.items()
    }
    apart = method.weighs
    layers = [weighted([layer], {"coefficients": weights[layer.name]}, apart)[0] for layer in models.given()]
    plain, other = (law_of(name).reference(layers, **own(method.validate(name, each))) for each in ({}, scaled))
    found = {at: two if inside[at] else one for at, one, two in zip(inside, plain, other, strict=True)}
    compare(merged(method, values, models), found, values)


@pytest.fixture(scope="session")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return write_alike(tmp_path_factory.mktemp("alike"))


@every_method
def test_a_method_computes_its_formula_of_equal_frozen_and_low_rank_tasks(name: str, alike: Models) -> None:
    for values in choices(name):
        agree(name, values, alike)


@pytest.fixture(scope="session")
def spectra(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Models]:
    root = tmp_path_factory.mktemp("spectra")
    for spectrum in SPECTRA:
        (root / spectrum).mkdir()
    return {spectrum: write_spectrum(root / spectrum, spectrum, tasks=3) for spectrum in SPECTRA}


@pytest.mark.parametrize("spectrum", SPECTRA)
@every_method
def test_a_method_computes_its_formula_whatever_the_singular_values(
    name: str, spectrum: str, spectra: dict[str, Models]
) -> None:
    """Deficient, ill-conditioned and repeated ones, wherever the formula says which merge they have."""
    method, models = registry.get(name), first_tasks(name, spectra[spectrum])
    few = with_few_steps(method, {})
    for values in (few, {}) if few else ({},):  # what few steps leave open, all may decide
        filled = method.validate(name, values)
        one, other = (expected(name, filled, each) for each in (models.given(), nudged(models.given())))
        if all(far(np.asarray(a), np.asarray(b)) <= MOVED * np.linalg.norm(a) for a, b in zip(one, other, strict=True)):
            compare(merged(method, filled, models), dict(zip(models.parameters, one, strict=True)), values)
            return
    pytest.skip("rounding decides which merge this is: equal singular values, or equal entries")


def nudged(layers: Sequence[Given]) -> list[Given]:
    """Change each task's matrices by as little as float64 can."""
    generator = np.random.default_rng(0)
    sizes = [NUDGE * np.abs(layer.deltas).max((1, 2), keepdims=True) for layer in layers]
    steps = [size * generator.random(layer.deltas.shape) for size, layer in zip(sizes, layers, strict=True)]
    return [layer._replace(deltas=layer.deltas + step) for layer, step in zip(layers, steps, strict=True)]


def agree(name: str, values: dict[str, Any], models: Models, computed: Mapping[str, Array] | None = None) -> None:
    """Merge, if that is not done, and compare with the method's reference: all parameters together, and each."""
    method = registry.get(name)
    filled = method.validate(name, with_few_steps(method, values))
    models = first_tasks(name, models)
    found = dict(zip(models.parameters, expected(name, filled, models.given()), strict=True))
    compare(computed or merged(method, filled, models), found, values)


def first_tasks(name: str, models: Models) -> Models:
    """Keep as many tasks as a method merges."""
    return replace(models, tasks=models.tasks[: registry.get(name).most_tasks])


def compare(computed: Mapping[str, Array], found: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Compare what was merged with what a reference found: all parameters together, and each."""
    pairs = {p: (computed[p], np.asarray(e)) for p, e in found.items()}
    for parameter, (ours, theirs) in pairs.items():
        assert ours.size == theirs.size, f"{parameter} {values}: {ours.shape}, the reference has {theirs.shape}"
        assert far(ours, theirs) <= TOLERANCE * np.linalg.norm(theirs), f"{parameter} {values}"
    whole = [np.concatenate([pair[side].reshape(-1) for pair in pairs.values()]) for side in (0, 1)]
    assert far(*whole) <= TOLERANCE * np.linalg.norm(whole[1]), values


def expected(name: str, values: Mapping[str, Any], layers: Sequence[Given]) -> Sequence[Any]:
    """Compute a method's formula, of weighted deltas where the coefficients are not the formula's own."""
    method = registry.get(name)
    if not method.weighted:
        return list(law_of(name).reference(layers, **values))
    return list(law_of(name).reference(weighted(layers, values, method.weighs), **own(values)))


def law_of(name: str) -> Any:
    """Import a method's law test; fail where it holds no reference."""
    law = importlib.import_module(f"tests.laws.test_{name}")
    assert hasattr(law, "reference"), f"tests/laws/test_{name}.py: no function `reference` for the method's formula"
    return law


def far(ours: Array, theirs: Array) -> float:
    """Return the Frobenius distance."""
    return float(np.linalg.norm(ours.reshape(-1) - theirs.reshape(-1)))


def merged(method: Method, values: dict[str, Any], models: Models) -> dict[str, Array]:
    """Merge as the library does: one first pass, then layer by layer; (T, ...) for parts per task."""
    source = models.source(method, values)
    merge_layer = method.bind(values, source)
    found = {}
    for layer in source:
        result = merge_layer(layer)
        if isinstance(result, Parts):
            shape = tuple(source.shapes[layer.name])
            result = torch.stack([delta_of(result, task, shape) for task in source.tasks])
        found[layer.name] = result.double().numpy()
    return found


def weighted(layers: Sequence[Given], values: Mapping[str, Any], apart: bool = False) -> list[Given]:
    """Multiply each task's delta by its coefficient and, where it has one of its own, by its scaling; or say these."""
    found = []
    for layer in layers:
        weights = np.ones(len(layer.tasks))
        for given in (values.get("coefficients"), values.get("scaling")):
            if given == "inverse_norm":
                inverse = 1 / np.array(layer.norms)
                weights *= len(inverse) / 2 * inverse / inverse.sum()
            elif isinstance(given, Mapping):
                weights *= [given.get(task, 1.0) for task in layer.tasks]
        deltas = layer.deltas * weights.reshape(-1, *[1] * (layer.deltas.ndim - 1))
        found.append(layer._replace(weights=weights) if apart else layer._replace(deltas=deltas))
    return found


def own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a formula has: what is per task has been multiplied in."""
    rest = {key: value for key, value in values.items() if key != "coefficients"}
    return rest | {"scaling": 1.0} if isinstance(rest.get("scaling"), Mapping) else rest
