"""What holds for every registered method, whatever it computes."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import Kind
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors
from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise
from merganser.merging.devices import each_tensor
from merganser.merging.method import Method
from merganser.overlays.parts import Parts
from tests.laws.layers import (
    delta_of,
    factored,
    made_layer,
    matrices,
    merged,
    norms_of,
    taken_by,
    vectors,
    with_few_steps,
)
from tests.support import each

# fmt: off
VOCABULARY = {
    "renormalise",
    "rescaler",
    "elect",
    "averaging",
    "centre",
    "orthogonalise",
    "scaling", "density", "drop_rate", "rank_fraction", "common_fraction", "tall_lambda", "k", "k_gate", "eta", "beta",
    "k_own", "rank",
    "gamma", "eps", "ratio", "cutoff", "temperature", "steps", "lr", "combine", "inner", "merged", "seed",
    "coefficients", "of", "granularity", "keep", "rescale", "pruning", "solve",
    "alpha", "slope", "floor", "limit", "length", "boost", "block", "time",
    "decompose", "thresholds", "scaled", "groups", "decomposition", "whitening", "experts", "superpose",
}
# fmt: on
OF_MODELS = {"superpose": "models"}  # scales the models themselves, so that those that are the base do not stay
IN_ORDER = {"decomposition": "qr"}  # takes the tasks in their order, for which its paper rejects it
VECTORS: dict[str, tuple[int, ...]] = {
    "blocks.0.ln_1.weight": (6,),
    "blocks.0.mlp.bias": (5,),
    "positional_embedding": (4, 6),
    "logit_scale": (),
}
MATRICES: dict[str, tuple[int, int]] = {
    "square.weight": (8, 8),
    "tall.weight": (12, 5),
    "wide.weight": (5, 12),
    "small.weight": (2, 3),  # fewer singular values than tasks
    "one_row.weight": (1, 6),
    "one_column.weight": (6, 1),
    "one_entry.weight": (1, 1),
}
SHAPES = MATRICES | VECTORS
# For laws to which a layer's shape is nothing, but for its kind.
FEW = {name: SHAPES[name] for name in ("square.weight", "wide.weight", "small.weight", "blocks.0.mlp.bias")}
FEW["positional_embedding"] = SHAPES["positional_embedding"]
# To which tasks are many: the wide one has fewer rows.
WIDE = {name: SHAPES[name] for name in ("wide.weight", "blocks.0.mlp.bias")}


def methods_that(holds: Callable[[Method], bool]) -> pytest.MarkDecorator:
    """Run a test for each registered method of which something holds."""
    return pytest.mark.parametrize("name", [name for name in registry.names() if holds(registry.get(name))])


every_method = methods_that(lambda method: True)


@dataclass(frozen=True)
class Suite:
    """The task vectors of a tiny suite: its layers as deltas, and the tasks' kinds (shown when a property fails)."""

    layers: tuple[LayerDeltas, ...] = field(repr=False)
    kinds: tuple[str, ...]


def suite_of(
    kinds: Sequence[str],
    seed: int,
    dtype: torch.dtype = torch.float32,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
) -> Suite:
    """Give tasks of the given kinds: full rank, rank one, unchanged since the base, or the same as the first."""
    return _suite(tuple(kinds), seed, dtype, tuple(shapes))


@cache
def _suite(kinds: tuple[str, ...], seed: int, dtype: torch.dtype, names: tuple[str, ...]) -> Suite:
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for name in names:
        drawn = [_delta(kind, SHAPES[name], generator) for kind in kinds]
        deltas = torch.stack([drawn[0] if kind == "same" else d for kind, d in zip(kinds, drawn, strict=True)])
        kind: Kind = "matrix" if name in MATRICES else "vector"
        layers.append(replace(made_layer(name, kind, deltas.to(dtype)), norms=norms_of(deltas)))
    return Suite(tuple(layers), kinds)


def _delta(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    size = 0.0 if kind == "frozen" else 0.02
    if kind == "low_rank" and len(shape) == 2:
        return size * torch.outer(*(torch.randn(n, generator=generator, dtype=torch.float64) for n in shape))
    return size * torch.randn(shape, generator=generator, dtype=torch.float64)


def holds(
    dtype: torch.dtype = torch.float32, on_many: bool = False, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> Any:
    """Check a property on a suite of every kind of task, and on one task.

    `on_many`: on more tasks than a wide matrix has rows, too.
    """
    suites = [suite_of(kinds, 0, dtype, shapes) for kinds in (["full", "low_rank", "frozen", "same"], ["full"])]
    return each("suite", [*suites, *([suite_of(["full"] * 6, 0, dtype, WIDE)] if on_many else [])])


def as_read(name: str, layers: Sequence[LayerDeltas]) -> list[Layer]:
    """Give the layers in the form that the method reads."""
    if not registry.get(name).factored:
        return [taken_by(registry.get(name), layer) for layer in layers]
    return [
        replace(factored(list(layer.deltas), layer.name), tasks=layer.tasks, norms=layer.norms)
        if layer.kind == "matrix"
        else layer
        for layer in layers
    ]


def as_deltas(name: str, layers: Sequence[LayerDeltas]) -> list[LayerDeltas]:
    """Give the layers of as many tasks as the method merges."""
    return [layer for each in layers if isinstance(layer := taken_by(registry.get(name), each), LayerDeltas)]


def choices(name: str) -> list[dict[str, str | bool]]:
    """List the defaults, and each option of each parameter that is a choice."""
    options: list[dict[str, str | bool]] = [{}]
    for key, parameter in registry.get(name).parameters.model_fields.items():
        if parameter.annotation is bool:
            options.append({key: not parameter.default})
        if get_origin(parameter.annotation) is Literal:
            options += [{key: option} for option in get_args(parameter.annotation) if option != parameter.default]
    return options


def models(name: str, layers: Sequence[LayerDeltas], values: Mapping[str, Any]) -> list[Tensor]:
    """Merge; give each layer's delta as (1, ...), or as (T, ...) in the tasks' order where each task has its own."""
    results = merged(name, *as_read(name, layers), **with_few_steps(registry.get(name), values))
    return [_stacked(result, layer) for result, layer in zip(results, layers, strict=True)]


def _stacked(result: Tensor | Parts, layer: LayerDeltas) -> Tensor:
    if isinstance(result, Tensor):
        return result.unsqueeze(0)
    shape = tuple(layer.deltas.shape[1:])
    return torch.stack([delta_of(result, task, shape) for task in layer.tasks])


@every_method
@holds(on_many=True)
def test_layers_keep_their_shape_inputs_stay_as_they_were_and_merging_again_gives_the_same_bits(
    name: str, suite: Suite
) -> None:
    layers = as_read(name, suite.layers)
    before = [[tensor.clone() for tensor in tensors_of(layer)] for layer in layers]
    for values in choices(name):
        first, again = (
            [*map(_stacked, merged(name, *layers, **with_few_steps(registry.get(name), values)), suite.layers)]
            for _ in range(2)
        )
        assert all(map(torch.equal, first, again)), values
        for delta, layer in zip(first, suite.layers, strict=True):
            assert delta.shape[1:] == layer.deltas.shape[1:], layer.name
            assert delta.dtype == torch.float32, layer.name
            assert delta.isfinite().all(), layer.name
    for layer, tensors in zip(layers, before, strict=True):
        assert all(map(torch.equal, tensors_of(layer), tensors)), layer.name


def tensors_of(layer: Layer) -> list[Tensor]:
    """List the tensors a layer is made of."""
    if not isinstance(layer, LayerDeltas):
        return [tensor for f in layer.factors for tensor in f]
    return [layer.deltas, *layer.statistics.measured.values()]


@methods_that(lambda method: not method.overlay)
@holds(torch.float64)
def test_double_precision_in_is_double_precision_out(name: str, suite: Suite) -> None:
    assert {delta.dtype for delta in models(name, suite.layers, {})} == {torch.float64}


@every_method
@each("tasks", [1, 4])
def test_tasks_that_changed_nothing_leave_the_base(name: str, tasks: int) -> None:
    for values in choices(name):
        layers = suite_of(["frozen"] * tasks, seed=0, shapes=FEW if values else SHAPES).layers
        if values != OF_MODELS:
            assert not any(delta.any() for delta in models(name, layers, values))


@every_method
@holds(torch.float64, on_many=True)
def test_the_order_of_the_tasks_changes_nothing_beyond_rounding(name: str, suite: Suite) -> None:
    suite = Suite(tuple(as_deltas(name, suite.layers)), suite.kinds[: registry.get(name).most_tasks])
    order = list(range(len(suite.kinds)))[::-1]
    order = order[1:] + order[:1]
    turned = [
        replace(
            x,
            tasks=tuple(x.tasks[t] for t in order),
            deltas=x.deltas[order],
            norms=tuple(x.norms[t] for t in order),
            statistics=each_tensor(x.statistics, lambda measured: measured[order]),
        )
        for x in suite.layers
    ]
    for values in choices(name):
        if values == IN_ORDER or registry.get(name).in_order:
            continue
        layers, others = (few_of(each) if values else each for each in (suite.layers, turned))
        straight, again = models(name, layers, values), models(name, others, values)
        for delta, other, layer in zip(straight, again, layers, strict=True):
            expected = delta[order] if len(delta) > 1 else delta
            tolerance = 1e-6 * float(layer.deltas.abs().max())
            torch.testing.assert_close(other, expected, rtol=1e-6, atol=tolerance, msg=f"{layer.name} {values}")


def few_of(layers: Sequence[LayerDeltas]) -> list[LayerDeltas]:
    """Leave out the layers of which a kind is there already."""
    return [layer for layer in layers if layer.name in FEW]


def keeps_the_largest(method: Method) -> bool:
    """Tell whether a method keeps each task's largest entries, and treats all others alike."""
    shares = {"density", "ratio", "beta"} & method.parameters.model_fields.keys()
    return bool(shares) and method.reads == "deltas" and method.cost == "elementwise"


def of_few_magnitudes(tasks: int) -> list[LayerDeltas]:
    """Make a suite whose entries have few magnitudes, as those of a fine-tune in bfloat16, and three equal layers."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"one.weight": (6, 9), "two.weight": (6, 9), "three.weight": (6, 9), "other.weight": (5, 8)}
    drawn = {name: torch.randint(-4, 5, (tasks, *shape), generator=generator) / 8 for name, shape in shapes.items()}
    return [
        made_layer(name, "matrix", drawn[name if name == "other.weight" else "one.weight"].clone()) for name in shapes
    ]


@methods_that(keeps_the_largest)
@each("tasks", [1, 3])
def test_which_of_equal_entries_are_kept_depends_on_no_order(name: str, tasks: int) -> None:
    """Equal layers keep the same entries; where entries and layers are turned around, so is the merge."""
    layers = of_few_magnitudes(tasks)
    turned = [replace(layer, deltas=layer.deltas.flip(1, 2)) for layer in layers[::-1]]
    for values in choices(name):
        if registry.get(name).is_random(registry.get(name).validate("", dict(values))):
            continue
        straight, again = models(name, layers, values), models(name, turned, values)
        assert all(torch.equal(straight[0], other) for other in straight[1:3]), values
        for one, other in zip(straight, again[::-1], strict=True):
            torch.testing.assert_close(other.flip(1, 2), one, rtol=1e-6, atol=0, msg=str(values))


@methods_that(lambda method: method.reads == "deltas")
@holds(shapes=FEW)
def test_the_layout_in_memory_changes_nothing(name: str, suite: Suite) -> None:
    strided = [replace(x, deltas=x.deltas.movedim(0, -1).contiguous().movedim(-1, 0)) for x in suite.layers]
    first, second = models(name, suite.layers, {}), models(name, strided, {})
    for delta, other in zip(first, second, strict=True):
        torch.testing.assert_close(other, delta, rtol=1e-5, atol=1e-7)


@methods_that(lambda method: "scaling" in method.parameters.model_fields and not method.overlay)
@holds(torch.float64, shapes=FEW)
def test_the_merged_delta_grows_in_proportion_to_the_scaling(name: str, suite: Suite) -> None:
    none, one, three = (models(name, suite.layers, {"scaling": scaling}) for scaling in (0.0, 1.0, 3.0))
    for at0, at1, at3 in zip(none, one, three, strict=True):  # what cart does not scale is there at 0
        torch.testing.assert_close(at3 - at0, 3 * (at1 - at0), rtol=1e-6, atol=1e-9)


takes_weights = methods_that(lambda method: method.weighted)
takes_scaling = methods_that(lambda method: method.weighted and "scaling" in method.parameters.model_fields)


@takes_weights
@holds(shapes=FEW)
def test_coefficients_of_one_change_nothing(name: str, suite: Suite) -> None:
    ones = dict.fromkeys(suite.layers[0].tasks, 1.0)
    for values in choices(name):
        given, without = (models(name, suite.layers, values | more) for more in ({"coefficients": ones}, {}))
        assert all(map(torch.equal, given, without)), values


@takes_weights
@holds(torch.float64, shapes=FEW)
def test_coefficients_are_the_same_as_larger_deltas(name: str, suite: Suite) -> None:
    weights = fitting(name, {"task0": 0.5, "task2": -2.0, "task3": 0.0}, suite)
    for values in choices(name):
        given = models(name, suite.layers, values | {"coefficients": weights})
        close(given, models(name, times(suite.layers, weights), values), suite)


@takes_scaling
@holds(torch.float64, shapes=FEW)
def test_a_scaling_per_task_is_the_same_as_larger_deltas_unscaled(name: str, suite: Suite) -> None:
    weights = fitting(name, {"task0": 0.5, "task2": -2.0}, suite)
    for values in choices(name):
        given = models(name, suite.layers, values | {"scaling": weights})
        close(given, models(name, times(suite.layers, weights), values | {"scaling": 1.0}), suite)


def fitting(name: str, weights: Mapping[str, float], suite: Suite) -> dict[str, float]:
    """Give the tasks' weights; above 0 to a method that weighs by itself: its tasks compete with unweighted deltas."""
    found = {task: weight for task, weight in weights.items() if task in suite.layers[0].tasks}
    return {task: abs(weight) or 1.0 for task, weight in found.items()} if registry.get(name).weighs else found


def times(layers: Sequence[LayerDeltas], weights: Mapping[str, float]) -> list[LayerDeltas]:
    """Multiply each task's deltas by its weight."""
    found = []
    for layer in layers:
        factors = torch.tensor([weights.get(task, 1.0) for task in layer.tasks], dtype=layer.deltas.dtype)
        found.append(replace(layer, deltas=(layer.deltas.movedim(0, -1) * factors).movedim(-1, 0).contiguous()))
    return found


def close(ours: Sequence[Tensor], theirs: Sequence[Tensor], suite: Suite) -> None:
    """Compare layer by layer, beyond rounding."""
    for one, other, layer in zip(ours, theirs, suite.layers, strict=True):
        tolerance = 1e-6 * float(layer.deltas.abs().max())
        torch.testing.assert_close(one, other, rtol=1e-6, atol=tolerance, msg=layer.name)


@takes_scaling
@each("key", ["coefficients", "scaling"])
def test_a_weight_for_an_unknown_task_is_refused_by_name(name: str, key: str) -> None:
    suite = suite_of(["full", "full"], seed=0)
    with pytest.raises(InputError, match=rf"{key}: no such task: task7; the tasks are task0, task1"):
        models(name, suite.layers, {key: {"task0": 1.0, "task7": 1.0}})


@takes_weights
def test_a_coefficient_for_an_unknown_task_is_refused_by_name(name: str) -> None:
    suite = suite_of(["full", "full"], seed=0)
    with pytest.raises(InputError, match=r"coefficients: no such task: task7"):
        models(name, suite.layers, {"coefficients": {"task7": 1.0}})


@every_method
def test_the_number_of_threads_changes_nothing_beyond_rounding(name: str) -> None:
    before, few = torch.get_num_threads(), with_few_steps(registry.get(name), {})
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            layers = decomposed(threads) if registry.get(name).factored else large_layers()
            found.append([_stacked(*each) for each in zip(merged(name, *layers, **few), large_layers(), strict=True)])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        if registry.get(name).cost == "elementwise":
            assert torch.equal(one, two)
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6 * float(one.abs().max()))


@cache
def decomposed(threads: int) -> list[Layer]:
    """Decompose the large layers' matrix as the pipeline does, in so many threads, which torch has."""
    wide, bias = large_layers()
    assert torch.get_num_threads() == threads
    return [LayerFactors(wide.name, wide.tasks, tuple(map(factorise, wide.deltas)), norms=wide.norms), bias]


@cache
def large_layers() -> list[LayerDeltas]:
    """Make layers large enough for torch to share them out to threads."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"wide.weight": (160, 256), "bias": (40_000,)}
    deltas = {name: 0.02 * torch.randn(3, *shape, generator=generator) for name, shape in shapes.items()}
    return [matrices(list(deltas["wide.weight"]), "wide.weight"), vectors(list(deltas["bias"]), "bias")]


@methods_that(lambda method: method.rank_fraction is not None)
@holds(torch.float64)
def test_the_factors_a_method_asks_for_are_enough(name: str, suite: Suite) -> None:
    method = registry.get(name)
    values = method.validate(name, {})
    assert method.rank_fraction is not None
    share = method.rank_fraction(len(suite.kinds), **values)
    layers = as_read(name, suite.layers)
    cut = [truncated(layer, share) if isinstance(layer, LayerFactors) else layer for layer in layers]
    for whole, from_cut, x in zip(merged(name, *layers), merged(name, *cut), suite.layers, strict=True):
        torch.testing.assert_close(_stacked(from_cut, x), _stacked(whole, x), rtol=1e-6, atol=1e-9)


def truncated(layer: LayerFactors, share: float) -> LayerFactors:
    """Keep a share of the singular vectors, and all of a spectrum too short to be shared out."""
    rank = min(layer.shape)
    k = count_of(share, rank) or rank
    return replace(layer, factors=tuple(Factors(u[:, :k], s, vh[:k]) for u, s, vh in layer.factors))


@each("name", registry.names())
def test_file_function_and_method_have_one_name(name: str) -> None:
    module = importlib.import_module(f"merganser.methods.{name}")
    assert registry.get(name).function is getattr(module, name)
    assert registry.get(name).name == name


@each("name", registry.names())
def test_a_method_says_what_it_does_and_where_it_is_from(name: str) -> None:
    method = registry.get(name)
    assert inspect.getdoc(method.function)
    assert inspect.getdoc(importlib.import_module(f"merganser.methods.{name}"))
    assert re.search(r"arXiv:\d{4}\.\d{5}|openreview\.net/forum\?id=\w{10}|under review|^none \(", method.paper)


@each("name", registry.names())
def test_parameters_are_keywords_of_the_one_vocabulary_with_defaults(name: str) -> None:
    layer, *parameters = inspect.signature(registry.get(name).function).parameters.values()
    assert layer.kind is layer.POSITIONAL_OR_KEYWORD
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert {p.name for p in parameters} <= VOCABULARY
    assert all(p.default is not p.empty for p in parameters)


@each("name", registry.names())
def test_every_parameter_refuses_nonsense_by_name(name: str) -> None:
    method = registry.get(name)
    assert method.validate("entry", {}) is not None
    for key in method.parameters.model_fields:
        for nonsense in (float("nan"), float("inf"), -float("inf"), "0.2", [0.2], {"a": "b"}):
            with pytest.raises(InputError, match=rf"entry\.{key}"):
                method.validate("entry", {key: nonsense})


@each("name", registry.names())
def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=r"entry\.scalling"):
        registry.get(name).validate("entry", {"scalling": 1.0})


@each("name", registry.names())
def test_only_scalings_and_coefficients_have_no_bounds(name: str) -> None:
    method = registry.get(name)
    for key, parameter in method.parameters.model_fields.items():
        if parameter.annotation in (int, float) and key not in ("scaling", "seed"):
            with pytest.raises(InputError, match=rf"entry\.{key}"):
                method.validate("entry", {key: -1})


@every_method
def test_the_seed_changes_a_merge_just_where_the_method_says_so(name: str) -> None:
    method = registry.get(name)
    fields = method.parameters.model_fields
    layers = suite_of(["full", "full"], 0, shapes=FEW).layers
    never = {key: 0.0 for key in ("drop_rate", "eps") if key in fields}
    for values in [*choices(name), *([never] if never else [])]:
        first, other = (models(name, [replace(layer, seed=seed) for layer in layers], values) for seed in (0, 1))
        same = all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
        assert same != method.is_random(method.validate("", dict(values)))
