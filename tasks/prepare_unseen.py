"""Fetch the data of one task without a model, and prepare its examples like those of the others."""

from merganser.config.params import Params
from merganser.tasks.fetch import fetch_data
from merganser.tasks.prepare import prepare_task
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import UNSEEN_DATASETS, UNSEEN_PREPARED


@stage("unseen")
def main(params: Params, task: str) -> None:
    """Fetch and prepare the unseen task named on the command line."""
    split, out = params.split_of(task), UNSEEN_PREPARED / task
    fetch_data(params.unseen[task], UNSEEN_DATASETS / task)
    prepare_task(params, task, split, "evaluation.split", out, params.evaluation.examples)


if __name__ == "__main__":
    run_main(main)
