"""Extract one task's deltas: fine-tuned minus base, parameter by parameter; an adapter's as its factors.

TASK, or DIFFERENCE TASK: minus the model that difference vectors start from.
"""

from pathlib import Path

from merganser.adapters.adapted import open_whole
from merganser.adapters.files import open_model
from merganser.checkpoints import open_checkpoint
from merganser.deltas import extract
from merganser.errors import InputError
from merganser.parameters import ParameterRules
from merganser.params import difference_of, load_params, task_of
from tasks.stage import BASE, CHECKPOINTS, DELTAS, DIFFERENCES, run


def extract_task(task: str, rules: ParameterRules) -> None:
    """Write a task's model minus the base."""
    DELTAS.mkdir(parents=True, exist_ok=True)
    extract(open_checkpoint(BASE), open_model(CHECKPOINTS / task), rules, task, DELTAS / f"{task}.safetensors")


def extract_difference(name: str, task: str, rules: ParameterRules) -> None:
    """Write a task's model minus the merged model that the difference vectors of this name start from."""
    folder, tuned = DIFFERENCES / name, open_whole(CHECKPOINTS / task, BASE, rules, task)
    extract(open_checkpoint(folder / "base"), tuned, rules, task, folder / f"{task}.safetensors")


def main(argv: list[str]) -> None:
    """Extract what the command line names."""
    params = load_params(Path("params.yaml"))
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices)
    match argv:
        case [task]:
            task_of(params, task)
            extract_task(task, rules)
        case [name, task]:
            difference_of(params, name)
            task_of(params, task)
            extract_difference(name, task, rules)
        case _:
            raise InputError(f"tasks.extract: expected TASK or DIFFERENCE TASK, got {' '.join(argv) or 'nothing'}")


if __name__ == "__main__":
    run(main)
