"""Measure how the tasks' deltas interfere, agree and resemble each other, layer by layer."""

from merganser.config.params import Params
from merganser.inputs.deltas import open_deltas
from merganser.inputs.factors import open_factors
from merganser.measures import defined
from merganser.measures.tasks import measure_tasks
from merganser.outputs import write_json
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import DELTAS, FACTORS, TASK_MEASURES
from merganser.workers import threads_wanted


@stage()
def main(params: Params) -> None:
    """Measure the tasks of the comparison in params.yaml."""
    tasks = list(params.tasks)
    measures = measure_tasks(open_deltas(DELTAS, tasks), open_factors(FACTORS, tasks), threads_wanted())
    write_json(TASK_MEASURES, defined(measures))


if __name__ == "__main__":
    run_main(main)
