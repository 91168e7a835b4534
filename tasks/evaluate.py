"""Evaluate one entry's merge on one task."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.evaluation.image_classification import evaluate
from merganser.overlays import task_model
from tasks.paths import DATASETS, MERGED, METRICS
from tasks.stage import run, two_names, write_json


def evaluate_task(params: Params, entry: str, task: str) -> None:
    """Score one task with its own model out of an entry's merge; write the score as JSON."""
    merged, out = MERGED / entry, METRICS / entry / f"{task}.json"
    score = evaluate(
        merged,
        task_model(merged, task),
        DATASETS / task,
        family=params.base.family,
        templates=declared(params.tasks, task, "tasks").data.templates,
        split=params.evaluation.split,
        batch_size=params.evaluation.batch_size,
    )
    write_json(out, score)
    print(f"{entry} on {task}: {score['metric']} {score['value']:.4f} on {score['count']} examples")


def main(argv: list[str]) -> None:
    """Evaluate the entry and the task named on the command line."""
    params = load_params(Path("params.yaml"))
    entry, task = two_names(argv, "evaluate", params.methods, params.tasks)
    declared(params.methods, entry, "methods")
    evaluate_task(params, entry, task)


if __name__ == "__main__":
    run(main)
