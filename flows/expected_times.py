"""How long the stages of a comparison that never ran here will take, by the cost model: right to a factor of three.

A stage is a fork of a process that has imported the libraries. Models are taken for transformers in float32, examples
for as many tokens as their kind of task says; what runs on a GPU for one of 20 TFLOP/s (`flows.cost_model`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb

from flows import cost_model
from flows.cost_model import CORE, FLOAT, GPU, Model, Rates, transformer
from flows.devices import Devices, devices_of
from merganser.config.inputs import INPUTS
from merganser.config.params import Entry, Params
from merganser.evaluation import get_kind
from merganser.inputs.factors import FactorSettings
from merganser.merging.method import Cost
from merganser.registry import get

START = 0.3  # s of a stage
START_NETWORK = 1.0  # of one that builds a network
RECORD = 1.5  # of one that opens MLflow's store
PATCH = 16  # pixels a side of a picture's patches, where the base's configuration does not say it
PICTURE = 224


@dataclass(frozen=True)
class Sizes:
    """What is known of a comparison before it ran: bytes of its base, a picture's tokens, examples of each task.

    `measured` and `validation` have the examples of the splits that are measured on and that are learned from.
    """

    base: float
    picture: int
    measured: Mapping[str, int]
    validation: Mapping[str, int]


def picture_tokens(size: int = PICTURE, patch: int = PATCH) -> int:
    """Return how many tokens a transformer makes of a picture: its patches, and one for the whole."""
    return (size // patch) ** 2 + 1


def seconds(params: Params, sizes: Sizes) -> dict[str, float]:
    """Return the seconds that stages will take, by name; without stages whose number of examples is unknown."""
    return {name: each for part in (_models, _examples, _inputs, _rest) for name, each in part(params, sizes)}


def _models(params: Params, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Give what reads and writes models alone, but for what entries read."""
    model, tasks = transformer(sizes.base / FLOAT), len(params.tasks)
    fetched = START + cost_model.fetch(model, CORE).seconds
    yield from ((stage, fetched) for stage in ("fetch_base", *(f"fetch@{task}" for task in params.tasks)))
    pairs, devices = cost_model.merge_triples(model, tasks, CORE).seconds, devices_of(params.model_dump())
    yield "measure", START + pairs
    for name, entry in params.methods.items():
        merged = merge_s(params, entry, model, _rates(devices, "merge"))
        yield f"merge@{name}", START + _seeds(params, entry) * merged
        yield f"measure_merged@{name}", START + pairs / tasks


def _examples(params: Params, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Give what reads tasks' data, and runs networks on what is measured."""
    devices = devices_of(params.model_dump())
    for task in params.measured:
        each = get_kind(params.tasks[task].kind).PREPARE_S
        if task in sizes.measured:
            yield f"prepare@{task}", START + each * sizes.measured[task]
            forward = forward_s(params, sizes, {task: sizes.measured[task]}, _rates(devices, "evaluate"))
            for name, entry in params.methods.items():
                once = START_NETWORK + sizes.base / CORE.read + forward
                yield f"evaluate@{name}-{task}", _seeds(params, entry) * once
            forward = forward_s(params, sizes, {task: sizes.measured[task]}, _rates(devices, "study_rank"))
            yield f"study_rank@{task}-fractions", START_NETWORK + len(params.studies.rank.fractions) * forward
        if task in sizes.validation:
            yield f"prepare_validation@{task}-split", START + each * sizes.validation[task]
    if sizes.measured.keys() < set(params.measured):
        return
    model, tasks = transformer(sizes.base / FLOAT), len(params.tasks)
    forward = forward_s(params, sizes, sizes.measured, _rates(devices, "study_tasks")) / tasks
    subsets = {size: min(params.studies.tasks.subsets, comb(tasks, size)) for size in range(2, tasks + 1)}
    for name, entry in params.studies.tasks.methods.items():
        merged = merge_s(params, entry, model, CORE)
        yield f"study_tasks@{name}", START_NETWORK + sum(n * (merged + size * forward) for size, n in subsets.items())


def _inputs(params: Params, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Give what makes what entries read."""
    model, tasks, devices = transformer(sizes.base / FLOAT), len(params.tasks), devices_of(params.model_dump())
    formed = len(params.measured) * model.values / CORE.add
    without = {
        "copy": START,
        "extract": START + cost_model.extract(model, CORE).seconds,
        "decompose": START + cost_model.decompose(model, _factors(params), CORE).seconds,
        "join": START + cost_model.join(model, tasks, CORE).seconds,
    }
    for work in (work for each in INPUTS.values() for work in each.work(params)):
        examples = sizes.validation if work.examples is None else work.examples
        if work.kind in without:
            yield work.stage, without[work.kind]
        elif work.examples is not None or sizes.validation.keys() >= set(params.measured):
            once = forward_s(params, sizes, examples, _rates(devices, work.stage)) + (formed if work.forms else 0)
            merged = merge_s(params, work.merges, model, CORE) if work.merges else 0
            yield work.stage, START_NETWORK + work.times * (once + merged)


def _rest(params: Params, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Give what costs its start alone."""
    yield from (("code", START), ("publish@source", START), ("report", 2 * RECORD))
    yield from ((f"record@{name}", RECORD) for name in params.methods)
    yield from ((f"fetch_data@{name}", START_NETWORK) for name in params.tasks)


def forward_s(params: Params, sizes: Sizes, examples: Mapping[str, int], rates: Rates) -> float:
    """Return the seconds of one pass forward of so many examples of tasks."""
    model = transformer(sizes.base / FLOAT)
    tokens = sum(_tokens(params.tasks[task].kind, sizes) * count for task, count in examples.items())
    return 2 * model.values * tokens / rates.network


def _tokens(kind: str, sizes: Sizes) -> int:
    tokens = get_kind(kind).TOKENS
    return sizes.picture if tokens is None else tokens


def merge_s(params: Params, entry: Entry, model: Model, rates: Rates) -> float:
    """Return the seconds of a merge, by what its method is made of; searches and studies merge on the CPU."""
    method, tasks, factors = get(entry.method), len(params.tasks), _factors(params)
    by_cost: Mapping[Cost, float] = {
        "elementwise": cost_model.merge_elementwise(model, tasks, rates).seconds,
        "fourier transform": 2 * cost_model.merge_elementwise(model, tasks, rates).seconds,
        "svd": cost_model.merge_svd(model, tasks, factors, rates).seconds,
        "joint svd": cost_model.merge_joint(model, tasks, rates).seconds,
        "linear system": cost_model.merge_svd(model, tasks, factors, rates).seconds,
    }
    first = 0.0  # the decompositions of a method that starts with some and is not given them
    if method.cost == "joint svd" and not params.inner(entry).named("joints"):
        first = cost_model.join(model, tasks, rates).seconds
    elif method.cost == "svd" and not method.factored:
        first = cost_model.decompose(model, factors, rates).seconds
    return first + by_cost[method.cost]


def _seeds(params: Params, entry: Entry) -> int:
    """Return how many merges an entry is: one a seed if its method draws at random."""
    return len(params.seeds) if get(entry.method).draws else 1


def _factors(params: Params) -> FactorSettings:
    return FactorSettings(params.decompose.rank_fraction, params.decompose.dtype)


def _rates(devices: Devices, stage: str) -> Rates:
    return GPU if devices.of(stage) == "cuda" else CORE
