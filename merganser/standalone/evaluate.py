"""Evaluate a model's folder on a task without the pipeline, by the steps of the pipeline."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.at_run_time import addition_of
from merganser.at_run_time.measuring import score_merges
from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.own_settings import write_own
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.loading import read_params
from merganser.config.mistakes import MistakesError, mistakes_in
from merganser.config.params import Evaluation, declared
from merganser.config.recipes import RECIPE, path_of, read_recipe
from merganser.config.sections import UNMEASURED, DeviceName, Task
from merganser.config.tasks import kind_mistakes
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.scoring import Score
from merganser.evaluation.setups import TaskSetup
from merganser.inputs.heads import NO_HEAD, Head, read_head, write_head
from merganser.models import Precision, get_family, open_network, usable_device
from merganser.overlays import open_overlays
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set
from merganser.sources.pointers import read_pointer


@dataclass(frozen=True)
class Declared:
    """A task as a params.yaml declares it, with what of the rest of the file its evaluation reads."""

    name: str
    task: Task
    family: str
    heads: Sequence[str]
    split: str
    batch_size: int
    device: DeviceName = "cpu"
    precision: Precision = "float32"


def declared_task(name: str, params: Path) -> Declared:
    """Return a task of a params.yaml, whose paths are relative to that file's folder."""
    known = read_params(params)
    task = declared(known.tasks, name, "tasks")
    data = task.data.model_copy(update={"source": str(params.parent / task.data.source)})
    there = task.model_copy(update={"source": str(params.parent / task.source), "data": data})
    how = known.evaluation
    split = known.split_of(name)
    return Declared(name, there, known.base.family, known.base.heads, split, how.batch_size, how.device, how.precision)


def task_of(settings: Mapping[str, Any], name: str, model: Path) -> Task:
    """Check a task's settings as in a params.yaml; without a source, the model itself has the head."""
    content = {"source": str(model), **settings}
    if mistakes := mistakes_in(content, Task, ("tasks", name)):
        raise MistakesError(mistakes)
    return Task.model_validate(content)


def evaluate_model(model: Path, about: Declared) -> Score:
    """Score a model's folder on a task: fetch and prepare its data in a temporary folder, then run the stage's code."""
    check_model(model)
    task = about.task
    how = {"batch_size": about.batch_size, "device": about.device, "precision": about.precision}
    if mistakes := [*mistakes_in(how, Evaluation), *kind_mistakes(("tasks", about.name), task, about.family)]:
        raise MistakesError(mistakes)
    get_family(about.family).check(model, open_checkpoint(model))
    if task.kind == UNMEASURED:
        raise InputError(f"tasks.{about.name}.kind: {UNMEASURED}: there is no data to evaluate on")
    overlays = open_overlays(model)
    if overlays is not None and about.name not in overlays.tasks:
        parts = ", ".join(overlays.tasks)
        raise InputError(f"{model}: keeps a part per task, of {parts}; say by name= which of them is wanted")
    evaluator = open_evaluator(task.kind, task.data.values, task.data.metric)
    device = usable_device(about.device, "device")
    with tempfile.TemporaryDirectory(prefix="merganser-") as made:
        data = Path(made) / "data"
        data.mkdir()
        fetch_data_set(Path(task.data.source), data, evaluator.check_data, task.data.columns)
        classes = evaluator.classes(data)
        head = _head_of(about, Path(made))
        evaluator.check_head(head.classes, classes, f"tasks.{about.name}")
        outputs = evaluator.outputs(classes)

        def opened(folder: Path) -> TaskSetup:
            network = open_network(about.family, folder, outputs=outputs, device=device, precision=about.precision)
            place = Path(tempfile.mkdtemp(dir=made))
            evaluator.prepare(data, about.split, network, place, "split")
            return TaskSetup(network, head, evaluator, Prepared(place).on(network.device))

        own = model if overlays is None else _own_settings(model, about, Path(made))
        rebuilt = opened(own)
        setup = opened(model) if own != model and addition_of(model) else rebuilt
        return score_merges(setup, [model], about.name, about.batch_size, rebuilt)[0]


def _own_settings(model: Path, about: Declared, made: Path) -> Path:
    """Return the folder with the configuration of a task's model that was rebuilt from a merge.

    It is the task's source, else the model in the merge's recipe if it exists, else the merge's folder.
    """
    source, recipe = Path(about.task.source), model / RECIPE
    if source == model:
        named = read_recipe(recipe).models.get(about.name) if recipe.is_file() else None
        source = model if named is None else path_of(named, model)
    if not source.exists():
        raise InputError(f"{source}: not there, and by it the model of {about.name} is built; put it back")
    own = _here(source, made)
    check_model(own)
    return made / "own" if own.is_dir() and write_own(model, own, made / "own") else model


def _here(source: Path, folder: Path) -> Path:
    """Return the path of a checkpoint on this disk; a pointer's target is fetched into the folder, once."""
    if read_pointer(source) is None:
        return source
    fetched = folder / "checkpoint"
    if not fetched.is_dir():
        fetched.mkdir()
        fetch_checkpoint(source, fetched)
    return fetched


def _head_of(about: Declared, folder: Path) -> Head:
    """Read a task's head from its own checkpoint; nothing if no parameter is a task's own."""
    if not about.heads:
        return NO_HEAD
    source = _here(Path(about.task.source), folder)
    check_model(source)
    file = folder / "head.safetensors"
    write_head(open_model(source), about.heads, source, about.name, file)
    return read_head(file)
