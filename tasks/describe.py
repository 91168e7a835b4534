"""Describe one task by the embedding of its class names."""

from pathlib import Path

from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.evaluation.images import class_names
from merganser.inputs.embeddings import write_embedding
from merganser.models import embed_classes
from tasks.paths import BASE, DATASETS, EMBEDDINGS
from tasks.stage import only_name, run


def describe_task(task: str, family: str) -> None:
    """Write the mean text embedding of the class names of a task's data."""
    names = class_names(DATASETS / task)
    EMBEDDINGS.mkdir(parents=True, exist_ok=True)
    write_embedding(EMBEDDINGS / f"{task}.safetensors", embed_classes(family, BASE, {task: names})[task])
    print(f"{task}: {len(names)} class names embedded")


def main(argv: list[str]) -> None:
    """Describe the task named on the command line."""
    task = only_name(argv, "describe")
    params = load_params(Path("params.yaml"))
    declared(params.tasks, task, "tasks")
    describe_task(task, params.base.family)


if __name__ == "__main__":
    run(main)
