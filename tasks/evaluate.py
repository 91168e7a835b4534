"""Evaluate one entry's merge on one task."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.examples import write_results
from merganser.evaluation.scoring import score_of
from merganser.models import open_network
from merganser.overlays import task_model
from tasks.paths import DATASETS, EXAMPLES, MERGED, METRICS
from tasks.stage import check_family, check_kind, run, two_names, write_json


def evaluate_task(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model out of an entry's merge; write the score as JSON, and each example's result."""
    about = declared(params.tasks, task, "tasks")
    check_family(params.base.family)
    check_kind(about.kind)
    merged, evaluator = MERGED / entry, open_evaluator(about.kind, about.data.own, about.data.metric)
    network = open_network(params.base.family, merged, outputs=evaluator.outputs(evaluator.classes(DATASETS / task)))
    prepared = evaluator.prepare(DATASETS / task, params.split_of(task), network)
    network.load(task_model(merged, task))
    results = evaluator.results(network, prepared, params.evaluation.batch_size)
    score = score_of(evaluator.metric, results)
    write_results(EXAMPLES / entry / f"{task}.safetensors", results)
    write_json(METRICS / entry / f"{task}.json", score)
    print(f"{entry} on {task}: {score['metric']} {score['value']:.4f} on {score['count']} examples")


def main(argv: list[str]) -> None:
    """Evaluate the entry and the task named on the command line."""
    params = load_params(Path("params.yaml"))
    entry, task = two_names(argv, "evaluate", params.methods, params.tasks)
    declared(params.methods, entry, "methods")
    evaluate_task(params, entry, task)


if __name__ == "__main__":
    run(main)
