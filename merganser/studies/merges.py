"""Merge subsets of the tasks and score each merge on its tasks, many subsets in one process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.tensors import Checkpoint
from merganser.evaluation.examples import Results
from merganser.evaluation.scoring import Score, score_of
from merganser.evaluation.setups import TaskSetup
from merganser.inputs.layers import LayerSource
from merganser.merging.binding import each_map
from merganser.merging.driver import choose_device, merge_layers
from merganser.merging.method import Method
from merganser.models import Network
from merganser.overlays import task_model


@dataclass(frozen=True)
class ScoringSetup:
    """The models and data on which every merge is scored, opened once."""

    base: Checkpoint
    tasks: Mapping[str, TaskSetup]  # tasks with the same number of outputs share a network
    own: Mapping[str, TaskSetup]  # what the tasks' own models, rebuilt of their parts, run on
    batch_size: int


def score_merge(
    method: Method,
    values: Mapping[str, Any],
    source: LayerSource,
    setup: ScoringSetup,
    folder: Path,
    others: Sequence[str] = (),
) -> dict[str, Score]:
    """Merge a source's tasks into a folder, as the merge stage does; return the merge's score on each that has data.

    `others`: tasks that are not merged, and measured too.
    """
    found = merge_results(method, values, source, setup, folder, others)
    return {task: score_on(own, results) for task, own, results in found}


def score_on(setup: TaskSetup, results: Results) -> Score:
    """Score results of one task's examples, with the device that they were computed on."""
    return score_of(setup.evaluator.metric, results) | {"device": setup.network.device.type}


def merge_results(
    method: Method,
    values: Mapping[str, Any],
    source: LayerSource,
    setup: ScoringSetup,
    folder: Path,
    others: Sequence[str] = (),
) -> Iterator[tuple[str, TaskSetup, Results]]:
    """Merge as `score_merge` does; yield each task that has data, what it ran on, and the results of its examples."""
    merge_layers(method, dict(values), source, setup.base, folder, choose_device("cpu"))
    loaded: Network | None = None
    for task in (*source.tasks, *others):
        if task not in setup.tasks:
            continue
        own = (setup.own if method.overlay else setup.tasks)[task]
        if method.overlay or own.head.patterns or own.network is not loaded:  # else all tasks use one model
            own.load(task_model(folder, task, setup.base))
            loaded = own.network
        yield task, own, own.results(setup.batch_size)


def values_for(values: Mapping[str, Any], subset: tuple[str, ...]) -> dict[str, Any]:
    """Restrict maps by task, such as `coefficients`, to the tasks that are merged."""

    def restricted(own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: {task: value[task] for task in value if task in subset} if isinstance(value, Mapping) else value
            for key, value in own.items()
        }

    return each_map(values, restricted)
