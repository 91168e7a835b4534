"""Merge subsets of the tasks and score each merge on its tasks, many subsets in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.reading import Checkpoint
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score, score_of
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerSource
from merganser.merging.by_layer import each_map
from merganser.merging.driver import choose_device, merge
from merganser.merging.method import Method
from merganser.models import Network
from merganser.overlays import task_model


@dataclass(frozen=True)
class ScoringSetup:
    """The models and data on which every merge is scored, opened once."""

    base: Checkpoint
    networks: Mapping[str, Network]  # by task; tasks with the same number of outputs share one
    evaluators: Mapping[str, Evaluator]
    prepared: Mapping[str, Prepared]
    heads: Mapping[str, Head]
    batch_size: int
    own: Mapping[str, tuple[Network, Prepared]]  # of tasks whose own models read or compute otherwise than the base


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
    merge(method, dict(values), source, setup.base, folder, choose_device("cpu"))
    scores: dict[str, Score] = {}
    loaded: Network | None = None
    for task in (*source.tasks, *others):
        if task not in setup.networks:
            continue
        network, prepared = setup.networks[task], setup.prepared[task]
        if method.overlay:
            network, prepared = setup.own.get(task, (network, prepared))
        head = setup.heads[task]
        if method.overlay or head.patterns or network is not loaded:  # else all tasks use one model
            network.load(head.put_on(task_model(folder, task, setup.base)))
            loaded = network
        evaluator = setup.evaluators[task]
        results = evaluator.results(network, prepared, setup.batch_size)
        scores[task] = score_of(evaluator.metric, results) | {"device": network.device.type}
    return scores


def values_for(values: Mapping[str, Any], subset: tuple[str, ...]) -> dict[str, Any]:
    """Restrict maps by task, such as `coefficients`, to the tasks that are merged."""

    def restricted(own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: {task: value[task] for task in value if task in subset} if isinstance(value, Mapping) else value
            for key, value in own.items()
        }

    return each_map(values, restricted)
