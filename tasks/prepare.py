"""Prepare one task's examples once for all evaluations: decoded and resized, or tokenised, by the family."""

from pathlib import Path

from merganser.checkpoints.own_settings import write_own
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.params import Params
from merganser.config.sections import UNMEASURED
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.prepared import OWN, write_prepared
from merganser.models import get_family, open_network
from merganser.outputs import fresh_folder
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, COMPANIONS, DATASETS, PREPARED, UNSEEN_DATASETS


def prepare_task(params: Params, task: str, split: str, where: str, out: Path, examples: int | None = None) -> None:
    """Write the network's inputs of one split of a task's data into a folder; `where`: the split's key.

    An unseen task has no checkpoint. If the task's own checkpoint has another configuration or preparation than the
    base, `own` in the folder has its configuration and its inputs. `examples`: at most so many, evenly spaced;
    None: all.
    """
    about, data = params.about(task), (DATASETS if task in params.tasks else UNSEEN_DATASETS) / task
    check_found("families", params.base.family)
    check_found("kinds", about.kind)
    evaluator = open_evaluator(about.kind, about.data.values, about.data.metric)
    if about.kind == UNMEASURED:
        with fresh_folder(out) as folder:
            described = {"kind": about.kind, "settings": {}, "metric": evaluator.metric, "classes": []}
            write_prepared(folder, [], described)
        print(f"{task}: no data, it is merged and not measured")
        return
    get_family(params.base.family).check(BASE, open_checkpoint(BASE))
    outputs = evaluator.outputs(evaluator.classes(data))
    network = open_network(params.base.family, BASE, outputs=outputs)
    with fresh_folder(out) as folder:
        count, dropped = evaluator.prepare(data, split, network, folder, where, examples)
        if task in params.tasks and write_own(BASE, COMPANIONS / task, folder / OWN):
            own = open_network(params.base.family, folder / OWN, outputs=outputs)
            evaluator.prepare(data, split, own, folder / OWN, where, examples)
            print(f"{task}: prepared for its own model too, which reads or computes otherwise than the base")
    left_out = f", {dropped} without a label left out" if dropped else ""
    print(f"{task}: {count} examples of {split} prepared{left_out}")


@stage("tasks")
def main(params: Params, task: str) -> None:
    """Prepare the task named on the command line."""
    prepare_task(params, task, params.split_of(task), "evaluation.split", PREPARED / task, params.evaluation.examples)


if __name__ == "__main__":
    run_main(main)
