"""Write the names of the tasks' classes, for the rows of the report's confusion matrices."""

from merganser.config.params import Params
from merganser.evaluation.prepared import Prepared
from merganser.outputs import write_json
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import CLASS_NAMES, PREPARED


@stage()
def main(params: Params) -> None:
    """Write each task's class names in the order of its labels; none for a kind of task without classes."""
    write_json(CLASS_NAMES, {task: Prepared(PREPARED / task).classes for task in params.measured})


if __name__ == "__main__":
    run_main(main)
