"""Extract one task's deltas: fine-tuned minus base, parameter by parameter; an adapter's as its factors."""

from pathlib import Path

from merganser.adapters.files import open_model
from merganser.checkpoints import open_checkpoint
from merganser.deltas import extract
from merganser.parameters import ParameterRules
from merganser.params import load_params, task_of
from tasks.stage import BASE, CHECKPOINTS, DELTAS, only_name, run


def extract_task(task: str, rules: ParameterRules, base: Path, out: Path) -> None:
    """Write the deltas of a task's fetched checkpoint against a base to a safetensors file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    extract(open_checkpoint(base), open_model(CHECKPOINTS / task), rules, task, out)


def main(argv: list[str]) -> None:
    """Extract the task named on the command line."""
    task = only_name(argv, "extract")
    params = load_params(Path("params.yaml"))
    task_of(params, task)
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices)
    extract_task(task, rules, BASE, DELTAS / f"{task}.safetensors")


if __name__ == "__main__":
    run(main)
