"""Score a task's model out of a merge, whatever the merge keeps beside its parameters."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from merganser.at_run_time import running
from merganser.evaluation.examples import Results
from merganser.evaluation.scoring import Score, mean_of_seeds, score_of_data_sets, score_of_seeds
from merganser.evaluation.setups import TaskSetup
from merganser.overlays import task_model


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
