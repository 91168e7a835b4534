"""Score a task's model from a merge, with the merge's addition to the network, if it has one.

On an unseen task, a merge with parts per task is scored by what all tasks share, as the papers measure such methods;
and for comparison by mixtures of the tasks' parts: in equal shares, by the likeness of the tasks' class names, and by
one task alone, the best of which (the oracle) no one can know.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from merganser.at_run_time import addition_of, running
from merganser.checkpoints.companions import copy_companions
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.views import stored_specs
from merganser.checkpoints.weight_files import MODEL
from merganser.checkpoints.writing import write_single
from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.examples import Results, mean_of_seeds
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score, score_of_data_sets, score_of_seeds
from merganser.evaluation.serving import serving
from merganser.evaluation.setups import TaskSetup
from merganser.inputs.heads import Head
from merganser.overlays import mixed_model, open_overlays, task_model

SERVED = "server"  # as the device of a score


def score_merges(
    setup: TaskSetup, folders: Sequence[Path], task: str, batch_size: int, rebuilt: TaskSetup
) -> tuple[Score, Results]:
    """Score one task with its own model from a merge, or from the merges of all seeds; return each example's result.

    `folders`: of the same merge, one per seed. If the merge chooses the task, the value is the one without the
    task's label, and `known` the one with it. `rebuilt`: the network and data of the task's model when it is
    rebuilt from its parts alone. For a group of data sets there is also a value for each.
    """
    evaluator, runs, shares = setup.evaluator, [], []
    for merged in folders:
        with running(setup.network, merged, task, setup.head) as (runner, counts):
            runs.append(evaluator.results(runner, setup.prepared, batch_size))
        shares += [counts.accuracy(task)] if counts else []
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if shares:
        with_label = []
        for merged in folders:
            rebuilt.load(task_model(merged, task))
            with_label.append(rebuilt.results(batch_size))
        known = score_of_seeds(evaluator.metric, with_label)["value"]
        score |= {"known": known, "router": fmean(shares)}
    if members := evaluator.members(setup.prepared):
        score |= {"data_sets": score_of_data_sets(evaluator.metric, runs, members)}
    score |= {"device": setup.network.device.type}
    return score, results


def score_served(
    command: str, prepared: Prepared, folders: Sequence[Path], task: str, batch_size: int, head: Head, made: Path
) -> tuple[Score, Results]:
    """Score as `score_merges` does, with each merge's model behind a server that a command starts.

    `made`: the temporary folder for a task's model that is no folder of its own.
    """
    evaluator, runs = evaluator_for(prepared), []
    for merged in folders:
        with _whole(merged, task, prepared, head, made) as model, serving(command, model) as server:
            runs.append(evaluator.served_results(server, model, prepared, batch_size))
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if members := evaluator.members(prepared):
        score |= {"data_sets": score_of_data_sets(evaluator.metric, runs, members)}
    score |= {"device": SERVED}
    return score, results


@contextmanager
def _whole(merged: Path, task: str, prepared: Prepared, head: Head, made: Path) -> Iterator[Path]:
    """Yield the folder of a task's model from a merge: the merge's own, or a temporary one for parts or heads."""
    parts = open_overlays(merged) is not None
    if not parts and not head.tensors:
        yield merged
        return
    apart = prepared.own if parts else None
    shutil.rmtree(made, ignore_errors=True)  # what a kill left
    made.mkdir(parents=True)
    try:
        copy_companions(merged if apart is None else apart.folder, made)
        specs = stored_specs(open_for_merging(merged))
        write_single(made / f"{MODEL}.safetensors", specs, head.put_on(task_model(merged, task)))
        yield made
    finally:
        shutil.rmtree(made)


Weights = Mapping[str, float]  # of the tasks' parts; none: what all tasks share


def score_unseen(
    setup: TaskSetup, folders: Sequence[Path], batch_size: int, alike: Weights | None
) -> tuple[Score, Results]:
    """Score merges, one per seed, on an unseen task: the merge's model for it, and others for comparison.

    The examples' results are those of the merge's own model. A merge that routes its inputs does so here; one with
    parts for mixtures mixes them by `alike`, how much the task borrows from each other task; any other uses what
    all tasks share.
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
