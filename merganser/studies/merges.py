"""Merge a subset of the tasks and measure the merge on each of them, many subsets in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.reading import Checkpoint
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score, score_of
from merganser.inputs.layers import LayerSource
from merganser.merging.driver import choose_device, merge
from merganser.merging.method import Method
from merganser.models import Network
from merganser.overlays import task_model


@dataclass(frozen=True)
class Bench:
    """What every merge is measured on, opened once."""

    base: Checkpoint
    networks: Mapping[str, Network]  # by task; tasks of as many outputs share one
    evaluators: Mapping[str, Evaluator]
    prepared: Mapping[str, Prepared]
    batch_size: int


def score_merge(
    method: Method, values: Mapping[str, Any], source: LayerSource, bench: Bench, folder: Path
) -> dict[str, Score]:
    """Merge a source's tasks into a folder, as the merge stage does; return the merge's score on each of them."""
    merge(method, dict(values), source, bench.base, folder, choose_device("cpu"))
    scores: dict[str, Score] = {}
    loaded: Network | None = None
    for task in source.tasks:
        network = bench.networks[task]
        if method.overlay or network is not loaded:  # without parts per task it is one model for all
            network.load(task_model(folder, task))
            loaded = network
        evaluator = bench.evaluators[task]
        scores[task] = score_of(evaluator.metric, evaluator.results(network, bench.prepared[task], bench.batch_size))
    return scores


def values_for(values: Mapping[str, Any], subset: tuple[str, ...]) -> dict[str, Any]:
    """Leave out what maps from tasks, such as `coefficients`, say of the tasks that are not merged."""
    return {
        key: {task: value[task] for task in value if task in subset} if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
