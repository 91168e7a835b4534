"""Describe one task by the embedding of its class names."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.evaluation.evaluator import open_evaluator
from merganser.inputs.embeddings import write_embedding
from merganser.models import embed_classes
from tasks.paths import BASE, DATASETS, EMBEDDINGS
from tasks.stage import check_family, only_name, run


def describe_task(params: Params, task: str) -> None:
    """Write the mean text embedding of the class names of a task's data."""
    family = params.base.family
    check_family(family)
    about = declared(params.tasks, task, "tasks")
    names = open_evaluator(about.kind, about.data.own, about.data.metric).classes(DATASETS / task)
    EMBEDDINGS.mkdir(parents=True, exist_ok=True)
    write_embedding(EMBEDDINGS / f"{task}.safetensors", embed_classes(family, BASE, {task: names})[task])
    print(f"{task}: {len(names)} class names embedded")


def main(argv: list[str]) -> None:
    """Describe the task named on the command line."""
    task = only_name(argv, "describe")
    describe_task(load_params(Path("params.yaml")), task)


if __name__ == "__main__":
    run(main)
