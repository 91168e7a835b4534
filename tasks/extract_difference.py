"""Extract one task's difference vector: its fine-tuned model minus a merged model."""

import tempfile
from pathlib import Path

from merganser.checkpoints.adapters.binding import open_whole
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabulary.writing import write_like_base
from merganser.config.params import Params
from merganser.inputs.deltas import extract
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import BASE, CHECKPOINTS, DIFFERENCES


@stage("differences", "tasks")
def main(params: Params, name: str, task: str) -> None:
    """Write a task's model minus the merged model that the difference vectors of this name start from."""
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    folder = DIFFERENCES / name
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        tuned = open_whole(write_like_base(BASE, task, CHECKPOINTS / task, Path(made)), BASE, rules, task)
        extract(open_for_merging(folder / "base"), tuned, rules, task, folder / f"{task}.safetensors")


if __name__ == "__main__":
    run_main(main)
