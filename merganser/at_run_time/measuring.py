"""Score a task's model out of a merge, whatever the merge keeps beside its parameters."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from merganser.at_run_time import running
from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score, mean_of_seeds, score_of_data_sets, score_of_seeds
from merganser.inputs.heads import Head
from merganser.models import Network
from merganser.overlays import task_model


def score_merges(
    network: Network,
    head: Head,
    evaluator: Evaluator,
    prepared: Prepared,
    folders: Sequence[Path],
    task: str,
    batch_size: int,
    rebuilt: tuple[Network, Prepared],
) -> tuple[Score, Results]:
    """Score one task with its own model out of a merge, or out of those with each seed, and say what each example gave.

    `folders`: of the same merge with one seed each. Where the merge chooses the task, the value is that without the
    task's label, and `known` the one with it. `rebuilt`: what the task's model by itself, as its parts give it, runs in
    and on. Of a group of data sets there is a value for each too.
    """
    runs, shares = [], []
    for merged in folders:
        with running(network, merged, task, head) as (runner, counts):
            runs.append(evaluator.results(runner, prepared, batch_size))
        shares += [counts.accuracy(task)] if counts else []
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if shares:
        own, data = rebuilt
        with_label = []
        for merged in folders:
            own.load(head.put_on(task_model(merged, task)))
            with_label.append(evaluator.results(own, data, batch_size))
        known = score_of_seeds(evaluator.metric, with_label)["value"]
        score |= {"known": known, "router": fmean(shares)}
    if members := evaluator.members(prepared):
        score |= {"data_sets": score_of_data_sets(evaluator.metric, runs, members)}
    score |= {"device": network.device.type}
    return score, results
