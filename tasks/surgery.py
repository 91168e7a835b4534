"""Train each task's bottleneck by one entry of `surgery`, on the tasks' validation data.

The folder has links to the deltas, so a merge reads one folder. It also stores each bottleneck when it is trained, so
that a kill loses at most the current task.
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.at_run_time.additions.bottlenecks import Bottleneck, can_change, train, write_bottlenecks
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.config.params import Params
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.embeddings import link_read
from merganser.inputs.factors import fingerprint_of
from merganser.inputs.task_models import own_model
from merganser.outputs import remove_others, write_json
from merganser.tasks.scoring import open_task
from merganser.tasks.stage import check_found, digest_of_code, run_main, stage
from merganser.tasks.stages import (
    COST,
    DATA,
    HEADS,
    SEEDS,
    SURGERY,
    VALIDATION,
    remove_other_seeds,
    seed_folders,
)

STATE, FINGERPRINT, ABOUT = "state", "fingerprint", "about"


def operate(params: Params, name: str, out: Path) -> None:
    """Train all tasks' bottlenecks with one seed; write them, their losses by step, and links to their inputs."""
    surgery = params.surgery[name]
    check_found("families", params.base.family)
    state, source, tasks = out / STATE, DATA / surgery.of, sorted(params.tasks)
    state.mkdir(parents=True, exist_ok=True)
    remove_others(out, {STATE, SEEDS})
    remove_others(state, {f"{task}.safetensors" for task in tasks})
    code, start = digest_of_code(params, "merganser.tasks.surgery"), sha256_of_tree(source / "base")
    chosen = [params.evaluation.model_dump(exclude={"split"}), [surgery.model_dump(), params.first_seed], code, start]
    bottlenecks, about = {}, {}
    for task in tasks:
        files = [HEADS / f"{task}.safetensors", VALIDATION / task, source / f"{task}.safetensors"]
        origin = sha256_of_json([task, *chosen, *map(sha256_of_tree, files)])
        bottlenecks[task], about[task] = bottleneck_of(params, name, task, state / f"{task}.safetensors", origin)
    write_bottlenecks(out, bottlenecks)
    trace = {task: {key: of[key] for key in ("losses", "best_step")} for task, of in about.items()}
    write_json(out / "trace.json", trace)
    examples = sum(of["examples"] for of in about.values())
    write_json(out / COST, {"forwards": 2 * examples, "backwards": 0})  # by both models; then features are enough
    link_read(source, params.tasks, out)


def bottleneck_of(params: Params, name: str, task: str, path: Path, origin: str) -> tuple[Bottleneck, dict[str, Any]]:
    """Return a task's bottleneck and trace: from its file if that has the fingerprint `origin`, else trained."""
    if fingerprint_of(path) == origin:
        file = SafetensorsFile(path)
        kept = {key: file.read(key) for key in file.names}
        return Bottleneck(**kept), json.loads(file.metadata["merganser"])[ABOUT]
    surgery = params.surgery[name]
    merged, own = both_features(params, DATA / surgery.of, task, f"surgery.{name}")
    trained = train(merged, own, params.first_seed, task, **surgery.model_dump(exclude={"of"}))
    best = trained.best_step
    print(f"{task}: L1 {trained.losses[0]:.4f}, {trained.losses[best]:.4f} after step {best}", flush=True)
    losses = {str(step): loss for step, loss in trained.losses.items()}
    about = {"losses": losses, "best_step": best, "examples": len(merged)}
    save_tensors(path, vars(trained.bottleneck), json.dumps({FINGERPRINT: origin, ABOUT: about}))
    return trained.bottleneck, about


def both_features(params: Params, source: Path, task: str, where: str) -> tuple[Tensor, Tensor]:
    """Return the merged model's and the task's own model's features of the task's validation data, (N, D) each."""
    start = source / "base"
    setup = open_task(params, task, VALIDATION, start)
    can_change(setup.network, f"{where}, {task}")
    changed = setup.prepared.own is not None
    own = open_task(params, task, VALIDATION, start, own=True) if changed else setup
    features = []
    for setup_of_side, deltas in ((setup, None), (own, DeltaFile(source / f"{task}.safetensors"))):
        setup_of_side.load(own_model(open_for_merging(start), deltas))
        features.append(setup_of_side.features(params.evaluation.batch_size))
    return features[0], features[1]


@stage("surgery", timed=True)
def main(params: Params, name: str) -> None:
    """Train by the entry of surgery named on the command line."""
    remove_other_seeds(SURGERY / name, params.seeds)
    for seed, out in seed_folders(SURGERY / name, params.seeds).items():
        operate(params.with_seed(seed), name, out)


if __name__ == "__main__":
    run_main(main)
