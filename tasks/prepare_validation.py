"""Prepare one task's examples of the validation split, once for all statistics, learning and searches."""

from merganser.config.params import Params, Validation
from merganser.tasks.prepare import prepare_task
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import VALIDATION


@stage("tasks", Validation.model_fields)
def main(params: Params, task: str, _: str) -> None:
    """Prepare the task on the command line; the second name is the split's key of params.yaml, always the same."""
    examples = params.validation.examples if params.validation else None
    prepare_task(params, task, params.validation_split_of(task), "validation.split", VALIDATION / task, examples)


if __name__ == "__main__":
    run_main(main)
