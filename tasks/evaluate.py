"""Evaluate one entry's merge on one task."""

from pathlib import Path
from statistics import fmean

from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.evaluation.examples import write_results
from merganser.evaluation.scoring import mean_of_seeds, score_of_seeds
from merganser.outputs import write_json
from merganser.overlays import task_model
from merganser.routed.finding import router_of
from merganser.routed.surgery import with_bottleneck
from tasks.paths import EXAMPLES, MERGED, METRICS, PREPARED, SEEDS
from tasks.scoring import open_task
from tasks.stage import check_family, run, two_names


def evaluate_task(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model out of an entry's merge, or out of those with each seed.

    Writes the score, and what the merge made of each example.
    """
    check_family(params.base.family)
    setup, runs = open_task(params, task, PREPARED, MERGED / entry), []
    network, head, evaluator = setup.network, setup.head, setup.evaluator
    folders = [MERGED / entry, *sorted((MERGED / entry / SEEDS).glob("*"), key=lambda folder: int(folder.name))]
    for merged in folders:
        network.load(head.put_on(task_model(merged, task)))
        with with_bottleneck(network, merged, task):
            runs.append(evaluator.results(network, setup.prepared, params.evaluation.batch_size))
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if without_label := router_of(MERGED / entry):
        known, routers, runs = score["value"], [], []
        for merged in folders:
            with without_label(network, merged, head) as seen:
                runs.append(evaluator.results(network, setup.prepared, params.evaluation.batch_size))
            routers.append(seen.accuracy(task))
        score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
        score |= {"known": known, "router": fmean(routers)}
    score |= {"device": network.device.type}
    write_results(EXAMPLES / entry / f"{task}.safetensors", results)
    write_json(METRICS / entry / f"{task}.json", score)
    label = f", {score['known']:.4f} with its label, router {score['router']:.4f}" if "known" in score else ""
    seeds = f", the mean of {len(runs)} seeds" if len(runs) > 1 else ""
    print(f"{entry} on {task}: {score['metric']} {score['value']:.4f} on {score['count']} examples{label}{seeds}")


def main(argv: list[str]) -> None:
    """Evaluate the entry and the task named on the command line."""
    params = load_params(Path("params.yaml"))
    entry, task = two_names(argv, "evaluate", params.methods, params.tasks)
    declared(params.methods, entry, "methods")
    declared(params.tasks, task, "tasks")
    evaluate_task(params, entry, task)


if __name__ == "__main__":
    run(main)
