"""Score a task's model out of a merge, whatever the merge keeps beside its parameters."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from merganser.evaluation.evaluator import Evaluator
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score, mean_of_seeds, score_of_data_sets, score_of_seeds
from merganser.inputs.heads import Head
from merganser.models import Network
from merganser.overlays import task_model
from merganser.routed.finding import router_of
from merganser.routed.surgery import with_bottleneck


def score_merges(
    network: Network,
    head: Head,
    evaluator: Evaluator,
    prepared: Prepared,
    folders: Sequence[Path],
    task: str,
    batch_size: int,
) -> tuple[Score, Results]:
    """Score one task with its own model out of a merge, or out of those with each seed, and say what each example gave.

    `folders`: of the same merge with one seed each. Where the merge has a router, the value is that without the task's
    label, and `known` the one with it. Of a group of data sets there is a value for each too.
    """
    runs = []
    for merged in folders:
        network.load(head.put_on(task_model(merged, task)))
        with with_bottleneck(network, merged, task):
            runs.append(evaluator.results(network, prepared, batch_size))
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if without_label := router_of(folders[0]):
        known, routers, runs = score["value"], [], []
        for merged in folders:
            with without_label(network, merged, head) as seen:
                runs.append(evaluator.results(network, prepared, batch_size))
            routers.append(seen.accuracy(task))
        score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
        score |= {"known": known, "router": fmean(routers)}
    if members := evaluator.members(prepared):
        score |= {"data_sets": score_of_data_sets(evaluator.metric, runs, members)}
    score |= {"device": network.device.type}
    return score, results
