"""Fit one entry of `routers`, which guesses an example's task from a model's features of the validation data.

The router's folder has links to the deltas, so a merge reads one folder.
"""

from pathlib import Path

from torch import Tensor

from merganser.at_run_time.additions.router import check_scores, write_router
from merganser.at_run_time.fitting import fit
from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.inputs.embeddings import link_read
from merganser.inputs.task_models import own_model
from merganser.outputs import fresh_folder, write_json
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, COST, DATA, ROUTERS, VALIDATION


@stage("routers", timed=True)
def main(params: Params, name: str) -> None:
    """Write a router of all tasks, and links to the deltas."""
    entry = params.routers[name]
    check_found("families", params.base.family)
    start = BASE if entry.of == "deltas" else DATA / entry.of / "base"
    features = {task: shared_features(params, start, task, f"routers.{name}") for task in sorted(params.tasks)}
    sizes = {task: inputs.shape[1] for task, inputs in features.items()}
    router = fit(features, entry.penalty)
    right = [
        float((router.probabilities(inputs).argmax(dim=1) == number).double().mean())
        for number, inputs in enumerate(features.values())
    ]
    with fresh_folder(ROUTERS / name) as folder:
        write_router(folder, router)
        write_json(folder / COST, {"forwards": sum(map(len, features.values())), "backwards": 0})
        link_read(DATA / entry.of, params.tasks, folder)
    shown = f"{sum(right) / len(right):.4f} of the validation examples right"
    print(f"{name}: {len(sizes)} tasks by {next(iter(sizes.values()))} features, {shown}")


def shared_features(params: Params, start: Path, task: str, where: str) -> Tensor:
    """Return a model's features of a task's validation data (N, D)."""
    setup = open_task(params, task, VALIDATION, start)
    check_scores(setup.network, f"{where}, {task}")
    setup.load(own_model(open_for_merging(start), None))
    return setup.features(params.evaluation.batch_size)


if __name__ == "__main__":
    run_main(main)
