"""Prepare one task's examples of the validation split, once for all statistics, learning and searches."""

from merganser.config.loading import load_params
from merganser.config.params import Validation, declared
from tasks.prepare import prepare_task
from tasks.stage import run, two_names
from tasks.stages import VALIDATION


def main(argv: list[str]) -> None:
    """Prepare the task named on the command line, and the split's key of params.yaml: there is one."""
    params = load_params()
    task, _ = two_names(argv, "prepare_validation", params.tasks, Validation.model_fields)
    declared(params.tasks, task, "tasks")
    examples = params.validation.examples if params.validation else None
    prepare_task(params, task, params.validation_split_of(task), "validation.split", VALIDATION / task, examples)


if __name__ == "__main__":
    run(main)
