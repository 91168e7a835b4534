"""Extract one task's difference vector: fine-tuned minus the merged model that it starts from."""

import tempfile
from pathlib import Path

from merganser.checkpoints.adapters.adapted import open_whole
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabulary.writing import like_base
from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.inputs.deltas import extract
from tasks.stage import run, two_names
from tasks.stages import BASE, CHECKPOINTS, DIFFERENCES


def extract_difference(name: str, task: str, rules: ParameterRules) -> None:
    """Write a task's model minus the merged model that the difference vectors of this name start from."""
    folder = DIFFERENCES / name
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        tuned = open_whole(like_base(BASE, task, CHECKPOINTS / task, Path(made)), BASE, rules, task)
        extract(open_for_merging(folder / "base"), tuned, rules, task, folder / f"{task}.safetensors")


def main(argv: list[str]) -> None:
    """Extract the vector of the difference and the task named on the command line."""
    params = load_params()
    name, task = two_names(argv, "extract_difference", params.differences, params.tasks)
    declared(params.differences, name, "differences")
    declared(params.tasks, task, "tasks")
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    extract_difference(name, task, rules)


if __name__ == "__main__":
    run(main)
