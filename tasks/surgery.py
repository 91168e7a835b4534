"""Train each task's bottleneck by one entry of `surgery`, on the tasks' validation data.

Beside the bottlenecks lies what they are of, as text embeddings have it: one folder is all that a merge reads.
And each task's bottleneck by itself, which a stage that was killed goes on from.
"""

from pathlib import Path

from torch import Tensor

from merganser.at_run_time.additions.bottlenecks import Bottleneck, can_change, train, write_bottlenecks
from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.embeddings import link_read
from merganser.inputs.task_models import own_model
from merganser.outputs import write_json
from merganser.tasks.beside import COST, TaskTensors, fingerprints, kept_by_task
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import DATA, SURGERY, VALIDATION, remove_other_seeds, seed_folders


def operate(params: Params, name: str, out: Path) -> None:
    """Write all tasks' bottlenecks with one seed, their losses by step, and links to what they are of."""
    surgery = params.surgery[name]
    check_found("families", params.base.family)
    how, source = surgery.model_dump(exclude={"of"}), DATA / surgery.of

    def make(task: str) -> TaskTensors:
        merged, own = both_features(params, source, task, f"surgery.{name}")
        found = train(merged, own, params.first_seed, task, **how)
        best = found.best_step
        print(f"{task}: L1 {found.losses[0]:.4f}, {found.losses[best]:.4f} after step {best}", flush=True)
        about = {
            "losses": {str(step): loss for step, loss in found.losses.items()},
            "best_step": best,
            "examples": len(merged),
        }
        return TaskTensors(vars(found.bottleneck), about)

    def read(task: str) -> list[Path]:
        return [source / f"{task}.safetensors"]

    chosen = [surgery.model_dump(), params.first_seed]
    trained = kept_by_task(out, fingerprints(params, "merganser.tasks.surgery", source / "base", read, chosen), make)
    write_bottlenecks(out, {task: Bottleneck(**found.tensors) for task, found in trained.items()})
    trace = {task: {key: found.about[key] for key in ("losses", "best_step")} for task, found in trained.items()}
    write_json(out / "trace.json", trace)
    examples = sum(found.about["examples"] for found in trained.values())
    write_json(out / COST, {"forwards": 2 * examples, "backwards": 0})  # by both models; then features are enough
    link_read(source, params.tasks, out)


def both_features(params: Params, source: Path, task: str, where: str) -> tuple[Tensor, Tensor]:
    """Return the merged model's and the task's own model's features of the task's validation data (N, D)."""
    start = source / "base"
    setup = open_task(params, task, VALIDATION, start)
    can_change(setup.network, f"{where}, {task}")
    changed = setup.prepared.own is not None
    own = open_task(params, task, VALIDATION, start, own=True) if changed else setup
    features = []
    for each, deltas in ((setup, None), (own, DeltaFile(source / f"{task}.safetensors"))):
        each.load(own_model(open_for_merging(start), deltas))
        features.append(each.features(params.evaluation.batch_size))
    return features[0], features[1]


@stage("surgery", timed=True)
def main(params: Params, name: str) -> None:
    """Train by the entry of surgery named on the command line."""
    remove_other_seeds(SURGERY / name, params.seeds)
    for seed, out in seed_folders(SURGERY / name, params.seeds).items():
        operate(params.with_seed(seed), name, out)


if __name__ == "__main__":
    run_main(main)
