"""Check suites against a hub of miniatures: `python -m tests.miniatures.checking NAME ...`, in a repository's root.

A process of its own, for `datasets` reads where its hub is when it is imported. Every source is pinned and fetched, and
all of it is read as stages read it: layouts, columns, splits, classes, prompts, heads; no model is merged.
"""

import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.views import in_file
from merganser.config.params import Params
from merganser.config.sections import Task, Unseen
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.prepared import Prepared
from merganser.flows.suites.check import validate_suite
from merganser.flows.suites.ready import load_suite, write_pointers
from merganser.models import get_family, open_network
from merganser.sources.pointers import HubPointer, read_pointer
from merganser.tasks.extract import extract_task
from merganser.tasks.fetch import fetch_data, fetch_model
from merganser.tasks.prepare import prepare_task
from merganser.tasks.stages import BASE, CHECKPOINTS, DATA, DATASETS, PREPARED, UNSEEN_DATASETS, VALIDATION
from tests.miniatures.data_sets import OWN_CLASSES, PICTURES, TEXTS

BATCH = 64


def check_suite(name: str, seen: set[str]) -> int:
    """Check a suite; return how many tasks it has. `seen`: models and data that were checked alike before."""
    found = validate_suite(Path(), name, online=True, pin_them=True)
    assert not found.mistakes, found.mistakes
    assert not found.notes, found.notes
    loose = [source.path for source in found.sources if source.hub and not source.revision]
    assert not loose, loose
    params = load_suite(Path(), name)
    write_pointers(Path(), params)
    if not isinstance(read_pointer(Path(params.base.source)), HubPointer):
        raise AssertionError(f"{name}: {params.base.source}: no pointer to a repository")
    fetch_model(Path(params.base.source), BASE, params.base.pad_token_id)
    get_family(params.base.family).check(BASE, open_checkpoint(BASE))
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    for task, about in params.tasks.items():
        model = json.dumps([params.base.source, params.parameters.merged, params.base.heads, about.source])
        if model not in seen:
            seen.add(model)
            fetch_model(Path(about.source), CHECKPOINTS / task)
            extract_task(task, rules)
    for task in (name for _, name in params.with_data):
        data = params.about(task).data.model_dump(mode="json")
        read = json.dumps([params.base.family, data, params.split_of(task)], default=str)
        if read not in seen:
            seen.add(read)
            check_data(params, task)
    shutil.rmtree(DATA)
    return len(params.tasks)


def check_data(params: Params, task: str) -> None:
    """Fetch a task's data and prepare the splits that are read; have the base answer where it needs no head."""
    about, data = params.about(task), (DATASETS if task in params.tasks else UNSEEN_DATASETS) / task
    fetch_data(about, data)
    prepare_task(params, task, params.split_of(task), "evaluation.split", PREPARED / task)
    if params.validation and task in params.tasks:
        split = params.validation_split_of(task)
        prepare_task(params, task, split, "validation.split", VALIDATION / task, params.validation.examples)
    evaluator = open_evaluator(about.kind, about.data.values, about.data.metric)
    classes = evaluator.classes(data)
    assert len(classes) in expected_classes(about), (task, len(classes))
    assert expected_templates(about) == len(about.data.values.get("templates", [])), task
    if evaluator.outputs(classes) is None:
        network = open_network(params.base.family, BASE)
        network.load(parameters(BASE))
        prepared = Prepared(PREPARED / task)
        assert len(evaluator.results(network, prepared, BATCH)) == len(prepared), task


def parameters(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Give a checkpoint's parameters by name."""
    checkpoint = open_for_merging(folder)
    return in_file(checkpoint, ((name, checkpoint.read(name)) for name in checkpoint.names))


def expected_classes(about: Task | Unseen) -> tuple[int, ...]:
    """Return how many classes a task's data has; none, where a number is predicted or written."""
    pointer = read_pointer(Path(about.data.source))
    if not isinstance(pointer, HubPointer):
        return (OWN_CLASSES if about.kind == "text_classification" else 0,)
    if pointer.hub in PICTURES:
        return (PICTURES[pointer.hub].classes,)
    return (TEXTS[pointer.hub][str(pointer.name)].classes,)


def expected_templates(about: Task | Unseen) -> int:
    """Return how many prompts a class has."""
    pointer = read_pointer(Path(about.data.source))
    return PICTURES[pointer.hub].templates if isinstance(pointer, HubPointer) and pointer.hub in PICTURES else 0


def main(names: list[str]) -> int:
    """Check suites, all of them even if one fails; return the exit code."""
    seen: set[str] = set()
    failed = []
    for name in names:
        try:
            print(f"{name}: {check_suite(name, seen)} tasks checked", flush=True)
        except (AssertionError, InputError):
            traceback.print_exc()
            failed.append(name)
            shutil.rmtree(DATA, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
