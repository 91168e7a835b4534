"""Extract one task's deltas: fine-tuned minus base, an adapter's as its factors; and the head that is its own."""

import tempfile
from pathlib import Path

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabulary.writing import write_like_base
from merganser.config.params import Params
from merganser.inputs.deltas import extract
from merganser.inputs.heads import write_head
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import BASE, CHECKPOINTS, DELTAS, HEADS


def extract_task(task: str, rules: ParameterRules) -> None:
    """Write a task's model minus the base, and its own head; say where its tokenizer differs."""
    for folder in (DELTAS, HEADS):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        source = write_like_base(BASE, task, CHECKPOINTS / task, Path(made))
        base, tuned = open_for_merging(BASE), open_model(source)
        for note in Agreement(BASE, rules).check(task, source, (base, tuned)):
            print(note)
        write_head(tuned, rules.heads, source, task, HEADS / f"{task}.safetensors")
        extract(base, tuned, rules, task, DELTAS / f"{task}.safetensors")


@stage("tasks")
def main(params: Params, task: str) -> None:
    """Extract the task named on the command line."""
    extract_task(task, ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads))


if __name__ == "__main__":
    run_main(main)
