"""Measure the tasks' deltas: how they interfere, agree and resemble each other, layer by layer."""

from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.inputs.deltas import open_deltas
from merganser.inputs.factors import open_factors
from merganser.measures import defined
from merganser.measures.tasks import measure_tasks
from merganser.outputs import write_json
from tasks.stage import run
from tasks.stages import DELTAS, FACTORS, TASK_MEASURES


def main(argv: list[str]) -> None:
    """Measure the tasks of the comparison in params.yaml."""
    if argv:
        raise InputError(f"tasks.measure: takes no arguments, got {' '.join(argv)}")
    tasks = list(load_params().tasks)
    write_json(TASK_MEASURES, defined(measure_tasks(open_deltas(DELTAS, tasks), open_factors(FACTORS, tasks))))


if __name__ == "__main__":
    run(main)
