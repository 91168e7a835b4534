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
from merganser.merging.driver import choose_device, merge_layers
from merganser.merging.method import Method
from merganser.models import DeviceName, Network
from merganser.overlays import task_model


@dataclass(frozen=True)
class ScoringSetup:
    """The models and data that score every merge, opened once."""

    base: Checkpoint
    tasks: Mapping[str, TaskSetup]  # tasks with the same number of outputs share a network
    own: Mapping[str, TaskSetup]  # what the tasks' own models, rebuilt of their parts, run on
    batch_size: int
    device: DeviceName


def score_on(setup: TaskSetup, results: Results) -> Score:
    """Score one task's results, with the device that computed them."""
    return score_of(setup.evaluator.metric, results) | {"device": setup.network.device.type}


def merge_results(
    method: Method,
    values: Mapping[str, Any],
    source: LayerSource,
    setup: ScoringSetup,
    folder: Path,
    others: Sequence[str] = (),
) -> Iterator[tuple[str, TaskSetup, Results]]:
    """Merge a source's tasks into a folder, as the merge stage does; yield each task with data, and its results.

    The device of the results is also that of the merge. `others`: tasks that are only measured.
    """
    merge_layers(method, dict(values), source, setup.base, folder, choose_device(setup.device))
    loaded: Network | None = None
    for task in (*source.tasks, *others):
        if task not in setup.tasks:
            continue
        own = (setup.own if method.overlay else setup.tasks)[task]
        if method.overlay or own.head.patterns or own.network is not loaded:  # else all tasks use one model
            own.load(task_model(folder, task, setup.base))
            loaded = own.network
        yield task, own, own.results(setup.batch_size)
