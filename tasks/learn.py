"""Learn the values of one entry of `learned` on all tasks' validation data, from the last state on.

The folder also has links to the layers' inputs, so a merge reads one folder.
"""

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.views import in_file
from merganser.config.params import Params
from merganser.config.sections import LearnedEntry
from merganser.evaluation.prepared import Prepared
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.deltas import open_deltas
from merganser.inputs.embeddings import READ, link_read
from merganser.inputs.factors import FactorSettings, factorised, open_factors
from merganser.inputs.heads import Head, read_head
from merganser.inputs.kept import kept_in_memory
from merganser.inputs.layers import LayerSource, Learned, MappedLayers, ThreadedLayers, dense_layer, weights_of
from merganser.inputs.learned import RESULT, TRACE, write_learned
from merganser.learning import BlockLearner, Learner
from merganser.learning.batches import Batches
from merganser.learning.block_merging import BlockMerging
from merganser.learning.block_routing import open_routing
from merganser.learning.loop import Learnable, LearningState, Loss, joint_problem, learn, per_task_problem
from merganser.learning.recalibration import Recalibration, recalibrated
from merganser.learning.settings import BlockSettings, LearnerSettings, RoutingSettings
from merganser.learning.task_losses import loss_and_examples, open_losses, open_setups
from merganser.models import DeviceName, usable_device
from merganser.outputs import fresh_folder, write_json
from merganser.registry import get, get_learner
from merganser.statistics.sampling import draw
from merganser.tasks.stage import check_found, digest_of_code, run_main, stage
from merganser.tasks.stages import BASE, DATA, HEADS, LEARNED, VALIDATION, remove_other_seeds, seed_folders
from merganser.workers import one_blas_thread, threads_wanted

STATE = "state"
SECONDS = 10  # between two lines on the terminal


@stage("learned", timed=True)
def main(params: Params, name: str) -> None:
    """Learn by an entry of `learned` with each seed, and link the layers' inputs."""
    entry, out = params.learned[name], LEARNED / name
    remove_other_seeds(out / STATE, params.seeds)
    states, results = (seed_folders(out / what, params.seeds) for what in (STATE, RESULT))
    for seed in params.seeds:
        learn_once(params.with_seed(seed), name, states[seed], results[seed])
    shutil.rmtree(out / READ, ignore_errors=True)
    link_read(DATA / entry.of, sorted(params.tasks), out)


def learn_once(params: Params, name: str, state: Path, result: Path) -> None:
    """Learn with one seed; write the values, and the losses by step."""
    entry = params.learned[name]
    check_found("families", params.base.family)
    check_found("methods", entry.learner)
    learner, tasks = get_learner(entry.learner), sorted(params.tasks)
    if isinstance(learner, BlockLearner):
        merge_blocks(params, name, learner, state, result)
        return
    if isinstance(learner, Recalibration):
        recalibrate(params, name, learner, state, result)
        return
    settings = learner.settings.model_validate(entry.values)
    problem = open_problem(params, entry, learner, settings, tasks)
    with one_blas_thread():
        learned = learn(
            problem,
            settings,
            state,
            learning_fingerprint(params, entry, settings, tasks),
            _Progress(name, settings.steps),
        )
    layers, best = problem.layers, learned.best_step
    names, blocks = list(layers.names), dict(problem.blocks)
    write_values(
        result,
        Learned(entry.learner, settings.model_dump(), list(layers.tasks), names, learned.best, blocks),
        **examples_seen(problem, learned),
        losses=list(learned.losses),
        checks=[{"step": step, "loss": loss} for step, loss in learned.checks.items()],
        best_step=best,
    )
    print(f"{name}: loss {learned.checks[0]:.4f}, {learned.checks[best]:.4f} after step {best} of {learned.step}")


def merge_blocks(params: Params, name: str, learner: BlockLearner, state: Path, result: Path) -> None:
    """Merge block after block with one seed; write the merged deltas, and the order of the blocks."""
    entry, tasks = params.learned[name], sorted(params.tasks)
    settings = learner.settings.model_validate(entry.values)
    data, heads = read_data(tasks)
    setups = open_setups(params.base.family, start_folder(entry), data, heads, device_of(settings))
    samples = [draw(data[task], settings.examples, params.first_seed, task) for task in tasks]
    layers = MappedLayers(open_deltas(DATA / entry.of, tasks), dense_layer)
    merging = BlockMerging(learner, settings, layers, open_for_merging(start_folder(entry)), setups, samples)
    with one_blas_thread():
        merged = merging.run(
            state,
            learning_fingerprint(params, entry, settings, tasks),
            lambda done, blocks: print(f"{name}: {done} of {blocks} blocks merged", flush=True),
        )
    names = list(weights_of(layers).names)
    order = [{"block": block.name, "maps": sorted(block.first)} for block in merged.blocks]
    values = Learned(entry.learner, settings.model_dump(), tasks, names, merged.values)
    write_values(result, values, forwards=merged.forwards, blocks=order)
    print(f"{name}: {len(merged.values)} linear maps merged in {len(merged.blocks)} blocks")


def recalibrate(params: Params, name: str, learner: Recalibration, state: Path, result: Path) -> None:
    """Recalibrate the merge that the deltas start from; write the changes of its statistics, in float64."""
    entry, tasks = params.learned[name], sorted(params.tasks)
    settings, (data, heads) = learner.settings.model_validate(entry.values), read_data(tasks)
    state.mkdir(parents=True, exist_ok=True)  # one pass leaves nothing in it
    layers, base = open_deltas(DATA / entry.of, tasks), open_for_merging(start_folder(entry))
    setup, *_ = open_setups(params.base.family, start_folder(entry), data, heads, device_of(settings))
    setup.load(in_file(base, ((each, base.read(each)) for each in base.names)))
    samples = [draw(data[task], settings.examples, params.first_seed, task) for task in tasks]
    with one_blas_thread():
        fresh = recalibrated(setup.network, samples, settings.batch_size)
    changes = {each: fresh[each].double() - base.read(each).double() for each in fresh if each in layers.kinds}
    names, pictures = list(weights_of(layers).names), sum(map(len, samples))
    write_values(result, Learned(entry.learner, settings.model_dump(), tasks, names, changes), forwards=pictures)
    print(f"{name}: {len(changes)} statistics recalibrated on {pictures} pictures")


def read_data(tasks: Sequence[str]) -> tuple[dict[str, Prepared], dict[str, Head]]:
    """Read each task's validation data and its head."""
    data = {task: Prepared(VALIDATION / task) for task in tasks}
    for prepared in data.values():
        check_found("kinds", prepared.about["kind"])
    return data, {task: read_head(HEADS / f"{task}.safetensors") for task in tasks}


def device_of(settings: LearnerSettings | BlockSettings) -> DeviceName:
    """Return the declared device; raise InputError if this machine has none."""
    return usable_device(settings.device, "learned.*.device")


def open_problem(
    params: Params, entry: LearnedEntry, learner: Learner, settings: LearnerSettings, tasks: list[str]
) -> Learnable:
    """Open a learning problem: the layers and their form, and each task's network, head and examples."""
    layers = open_layers(entry, tasks)
    folder, device = start_folder(entry), device_of(settings)
    data, heads = read_data(tasks)
    losses = open_losses(params.base.family, folder, data, heads, device)
    batches = [
        Batches(params.first_seed, task, params.validation_split_of(task), len(data[task]), settings.batch_size)
        for task in tasks
    ]
    base, place = open_for_merging(folder), torch.device(device)
    if learner.routers:
        assert isinstance(settings, RoutingSettings)
        return open_routing(learner.routers, settings, params.first_seed, layers, base, losses, batches, place)

    def problem(layers: LayerSource, seen: Sequence[tuple[Loss, Batches]]) -> Learnable:
        assert learner.form is not None
        form = learner.form(layers, settings, params.first_seed)
        return joint_problem(form, base, [loss for loss, _ in seen], [of for _, of in seen], place)

    seen = [loss_and_examples(*each, settings) for each in zip(losses, batches, strict=True)]
    if not settings.apart:
        return problem(layers, seen)
    alone = [open_layers(entry, tasks, task) for task in tasks]
    return per_task_problem([problem(own, [one]) for own, one in zip(alone, seen, strict=True)], layers)


def open_layers(entry: LearnedEntry, tasks: list[str], alone: str | None = None) -> LayerSource:
    """Open a learner's layers: factors, or deltas with adapters multiplied out; of all tasks or of one."""
    folder = DATA / entry.of
    if get(entry.learner).reads == "deltas":
        deltas = open_deltas(folder, tasks)
        source: LayerSource = MappedLayers(deltas.alone(alone) if alone else deltas, dense_layer)
    elif entry.of == "svd":
        source = open_factors(folder, tasks)
    else:
        decomposed = MappedLayers(open_deltas(folder, tasks), partial(factorised, settings=FactorSettings(1.0)))
        source = kept_in_memory(decomposed)
    return ThreadedLayers(weights_of(source), threads_wanted())


def start_folder(entry: LearnedEntry) -> Path:
    """Return the folder of the model that the deltas start from."""
    own = DATA / entry.of / "base"
    return own if own.is_dir() else BASE


def learning_fingerprint(
    params: Params, entry: LearnedEntry, settings: LearnerSettings | BlockSettings, tasks: list[str]
) -> str:
    """Return a digest of everything that a state depends on: settings but the step count, seed, code, files."""
    code = digest_of_code(params, "merganser.tasks.learn", f"merganser.methods.{entry.learner}")
    folder, source = start_folder(entry), DATA / entry.of
    read = [
        source / f"{task}.safetensors" if (source / f"{task}.safetensors").is_file() else source / task
        for task in tasks
    ]
    files = [folder, *read, *(HEADS / f"{task}.safetensors" for task in tasks), *(VALIDATION / task for task in tasks)]
    splits = [params.validation_split_of(task) for task in tasks]
    chosen = settings.model_dump(exclude={"steps"})
    return sha256_of_json([chosen, params.first_seed, tasks, splits, code, *map(sha256_of_tree, files)])


def write_values(out: Path, learned: Learned, **seen: Any) -> None:
    """Replace the learned values and their trace; `seen`: what was counted and measured on the way to them."""
    about = {"learner": learned.learner, **learned.settings}
    trace = {"settings": about, "forwards": 0, "backwards": 0, "losses": [], "checks": [], **seen}
    with fresh_folder(out) as folder:
        write_learned(folder, learned)
        write_json(folder / TRACE, trace)


def examples_seen(problem: Learnable, state: LearningState) -> dict[str, int]:
    """Count the examples that went through the network, forward and backward."""
    passes = sum(map(problem.passes, range(state.step)))
    steps = passes * sum(batches.size for batches in problem.batches)
    checks = len(state.checks) * sum(len(rows) for batches in problem.batches for rows in batches.fixed())
    return {"forwards": steps + checks, "backwards": steps}


class _Progress:
    """Lines on the terminal, some seconds apart."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.last = name, steps, time.monotonic()

    def __call__(self, state: LearningState) -> None:
        """Say where learning stands."""
        if time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            best = state.checks[state.best_step]
            print(
                f"{self.name}: step {state.step} of {self.steps}, loss {state.losses[-1]:.4f}, best {best:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    run_main(main)
