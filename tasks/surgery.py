"""Train each task's bottleneck by one entry of `surgery`, on the tasks' validation data.

Beside the bottlenecks lies what they are of, as text embeddings have it: one folder is all that a merge reads.
"""

from pathlib import Path

from torch import Tensor

from merganser.checkpoints.reading import open_for_merging
from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.embeddings import link_read
from merganser.inputs.task_models import own_model
from merganser.routed.features import features_of
from merganser.routed.surgery import Training, can_change, train, write_bottlenecks
from tasks.paths import DATA, SURGERY, VALIDATION, seed_folders
from tasks.scoring import open_task
from tasks.stage import check_family, fresh_folder, only_name, run, write_json


def operate(params: Params, name: str, out: Path) -> None:
    """Write all tasks' bottlenecks with one seed, their losses by step, and links to what they are of."""
    surgery = declared(params.surgery, name, "surgery")
    check_family(params.base.family)
    how = Training(surgery.rank, surgery.steps, surgery.batch_size, surgery.lr)
    trained = {}
    for task in sorted(params.tasks):
        merged, own = both_features(params, DATA / surgery.of, task, f"surgery.{name}")
        trained[task] = found = train(merged, own, how, params.first_seed, task)
        best = found.best_step
        print(f"{task}: L1 {found.losses[0]:.4f}, {found.losses[best]:.4f} after step {best}", flush=True)
    with fresh_folder(out) as folder:
        write_bottlenecks(folder, {task: found.bottleneck for task, found in trained.items()})
        trace = {task: {"losses": found.losses, "best_step": found.best_step} for task, found in trained.items()}
        write_json(folder / "trace.json", trace)
        link_read(DATA / surgery.of, params.tasks, folder)


def both_features(params: Params, source: Path, task: str, where: str) -> tuple[Tensor, Tensor]:
    """Return the merged model's and the task's own model's features of the task's validation data (N, D)."""
    start = source / "base"
    setup = open_task(params, task, VALIDATION, start)
    can_change(setup.network, f"{where}, {task}")
    features = []
    for deltas in (None, DeltaFile(source / f"{task}.safetensors")):
        setup.network.load(setup.head.put_on(own_model(open_for_merging(start), deltas)))
        features.append(features_of(setup.network, setup.prepared, params.evaluation.batch_size))
    return features[0], features[1]


def main(argv: list[str]) -> None:
    """Train by the entry of surgery named on the command line."""
    params, name = load_params(Path("params.yaml")), only_name(argv, "surgery")
    for seed, out in seed_folders(SURGERY / name, params.seeds).items():
        operate(params.with_seed(seed), name, out)


if __name__ == "__main__":
    run(main)
