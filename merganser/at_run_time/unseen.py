"""Score a merge on a task that it did not see: which model of a merge with parts per task that has.

What all tasks share, as the papers measure such methods; and beside it mixtures of the tasks' parts: in equal shares,
by the likeness of the tasks' class names, and of one task alone, the best of which (the oracle) no one can know.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from merganser.at_run_time import addition_of, running
from merganser.evaluation.examples import Results, mean_of_seeds
from merganser.evaluation.scoring import Score, score_of_seeds
from merganser.evaluation.setups import TaskSetup
from merganser.overlays import mixed_model, open_overlays

Weights = Mapping[str, float]  # of the tasks' parts; none: what all tasks share


def score_unseen(
    setup: TaskSetup, folders: Sequence[Path], batch_size: int, alike: Weights | None
) -> tuple[Score, Results]:
    """Score merges, one with each seed, on an unseen task: the model that the merge has for it, and others beside.

    The examples' results are those of the model that the merge has for it.

    A merge that routes its inputs itself does so; one whose parts are for mixtures takes that by `alike`, how much the
    task borrows from each other one; of any other it is what all tasks share.
    """
    addition, overlays = addition_of(folders[0]), open_overlays(folders[0])
    if addition is not None and not addition.TASK_GIVEN:
        score, results = _routed(setup, folders, batch_size)
        return score | {"device": setup.network.device.type}, results
    score, results = _mixed(setup, folders, batch_size, {})
    if overlays is not None:
        tasks = overlays.tasks
        alone = {task: _mixed(setup, folders, batch_size, {task: 1.0})[0]["value"] for task in tasks}
        uniform, _ = _mixed(setup, folders, batch_size, dict.fromkeys(tasks, 1 / len(tasks)))
        oracle = max(alone, key=alone.__getitem__)
        score |= {"uniform": uniform["value"], "oracle": alone[oracle], "oracle_task": oracle}
        if alike is not None:
            similar, of_similar = _mixed(setup, folders, batch_size, alike)
            if overlays.is_mixed:
                score, results = score | similar, of_similar
            score |= {"similar": similar["value"]}
    return score | {"device": setup.network.device.type}, results


def _mixed(setup: TaskSetup, folders: Sequence[Path], batch_size: int, weights: Weights) -> tuple[Score, Results]:
    runs = []
    for merged in folders:
        setup.load(mixed_model(merged, weights))
        runs.append(setup.results(batch_size))
    return score_of_seeds(setup.evaluator.metric, runs), mean_of_seeds(runs)


def _routed(setup: TaskSetup, folders: Sequence[Path], batch_size: int) -> tuple[Score, Results]:
    runs = []
    for merged in folders:
        with running(setup.network, merged, head=setup.head) as (network, _):
            runs.append(setup.evaluator.results(network, setup.prepared, batch_size))
    return score_of_seeds(setup.evaluator.metric, runs), mean_of_seeds(runs)
