"""Extract one task's deltas: fine-tuned minus base, parameter by parameter; an adapter's as its factors."""

from pathlib import Path

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.vocabularies import check_vocabulary
from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.inputs.deltas import extract
from tasks.paths import BASE, CHECKPOINTS, DELTAS
from tasks.stage import only_name, run


def extract_task(task: str, rules: ParameterRules) -> None:
    """Write a task's model minus the base, and say where its tokenizer differs from the base's."""
    DELTAS.mkdir(parents=True, exist_ok=True)
    base, tuned = open_for_merging(BASE), open_model(CHECKPOINTS / task)
    for note in check_vocabulary(BASE, CHECKPOINTS / task, (base, tuned), task):
        print(note)
    extract(base, tuned, rules, task, DELTAS / f"{task}.safetensors")


def main(argv: list[str]) -> None:
    """Extract the task named on the command line."""
    task = only_name(argv, "extract")
    params = load_params(Path("params.yaml"))
    declared(params.tasks, task, "tasks")
    extract_task(task, ParameterRules(params.parameters.merged, params.parameters.matrices))


if __name__ == "__main__":
    run(main)
