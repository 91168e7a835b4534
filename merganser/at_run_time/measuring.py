"""Score a task's model out of a merge, whatever the merge keeps beside its parameters."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from merganser.at_run_time import running
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
from merganser.overlays import open_overlays, task_model

SERVED = "server"  # as the device of a score


def score_merges(
    setup: TaskSetup, folders: Sequence[Path], task: str, batch_size: int, rebuilt: TaskSetup
) -> tuple[Score, Results]:
    """Score one task with its own model out of a merge, or out of those with each seed, and say what each example gave.

    `folders`: of the same merge with one seed each. Where the merge chooses the task, the value is that without the
    task's label, and `known` the one with it. `rebuilt`: what the task's model by itself, as its parts give it, runs in
    and on. Of a group of data sets there is a value for each too.
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
    """Score as `score_merges` does, each merge's model asked behind a server that a command starts.

    `made`: where a folder is written while it is served, of a task's model that is no folder of its own.
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
    """Give the folder of a task's model out of a merge: the merge's own, or where it has parts or heads one for now."""
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
