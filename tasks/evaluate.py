"""Evaluate one entry's merge on one task."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.evaluation.evaluator import evaluator_for
from merganser.evaluation.examples import write_results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import mean_of_seeds, score_of, score_of_seeds
from merganser.inputs.heads import read_head
from merganser.models import open_network
from merganser.models.device import usable
from merganser.overlays import task_model
from merganser.routed.finding import router_of
from merganser.routed.surgery import with_bottleneck
from tasks.paths import EXAMPLES, HEADS, MERGED, METRICS, PREPARED, SEEDS
from tasks.stage import check_family, check_kind, run, two_names, write_json


def evaluate_task(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model out of an entry's merge, or out of those with each seed.

    Writes the score, and what the merge made of each example.
    """
    check_family(params.base.family)
    prepared = Prepared(PREPARED / task)
    evaluator = evaluator_for(prepared)
    check_kind(evaluator.name)
    device, precision = usable(params.evaluation.device, "evaluation.device"), params.evaluation.precision
    outputs = evaluator.outputs(prepared.classes)
    network = open_network(params.base.family, MERGED / entry, outputs=outputs, device=device, precision=precision)
    head = read_head(HEADS / f"{task}.safetensors")
    evaluator.check_head(head.classes, prepared.classes, task)
    data, runs = prepared.on(network.device), []
    for merged in [MERGED / entry, *sorted((MERGED / entry / SEEDS).glob("*"), key=lambda folder: int(folder.name))]:
        network.load(head.put_on(task_model(merged, task)))
        with with_bottleneck(network, merged, task):
            runs.append(evaluator.results(network, data, params.evaluation.batch_size))
    score, results = score_of_seeds(evaluator.metric, runs), mean_of_seeds(runs)
    if without_label := router_of(MERGED / entry):
        known = score["value"]
        with without_label(network, MERGED / entry, head) as seen:
            results = evaluator.results(network, data, params.evaluation.batch_size)
        score = score_of(evaluator.metric, results) | {"known": known, "router": seen.accuracy(task)}
    score |= {"device": device}
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
