"""Fetch the base model, one task's model, or one task's data into the pipeline: `base`, `task NAME` or `data NAME`."""

import shutil
from dataclasses import asdict
from pathlib import Path

from merganser.checkpoints.companions import copy_companions, model_origin
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.reading import DESCRIPTION
from merganser.config.loading import load_params
from merganser.config.params import declared
from merganser.config.sections import UNMEASURED, Task, Unseen
from merganser.errors import InputError
from merganser.evaluation.evaluator import open_evaluator
from merganser.outputs import fresh_folder, write_json
from merganser.sources.fetching import fetch_checkpoint, fetch_data_set, write_source_description
from merganser.tasks.stage import check_found, run_main
from merganser.tasks.stages import BASE, CHECKPOINTS, COMPANIONS, DATASETS, SOURCES

LEFT = {
    "tied": "second names of tied weights, left out",
    "constants": "constants, left out",
    "wrappers": "prefixes of training wrappers in the names of parameters, left out",
    "left_out": "files that a model does not need, or that would run code, left out",
    "dequantised": "GGUF",
    "modules": "modules with their own weights, which merges copy from the base",
}


def fetch_model(source: Path, out: Path, pad_token_id: int | None = None) -> None:
    """Fetch a whole checkpoint, and say what was left out; `pad_token_id`: written into its configuration."""
    with fresh_folder(out) as folder:
        left = fetch_checkpoint(source, folder, pad_token_id)
    for kind, names in left.items():
        print(f"{source}: {LEFT[kind]}: {', '.join(names)}")


def put_aside(task: str) -> None:
    """Move the files next to a fetched model's weights to a folder of their own, so that readers need no weights."""
    with fresh_folder(COMPANIONS / task) as folder:
        copy_companions(CHECKPOINTS / task, folder)
        write_json(folder / DESCRIPTION, {"files": sorted(path.name for path in folder.iterdir())})  # never empty


def fetch_data(task: Task | Unseen, out: Path) -> None:
    """Fetch a task's data set into a folder that appears when it is complete; refuse data of another kind."""
    check_found("kinds", task.kind)
    if task.kind == UNMEASURED:
        with fresh_folder(out) as folder:
            write_json(folder / DESCRIPTION, {"kind": UNMEASURED})
        return
    evaluator = open_evaluator(task.kind, task.data.values, task.data.metric)
    with fresh_folder(out) as folder:
        fetch_data_set(Path(task.data.source), folder, evaluator.check_data, task.data.columns)


def main(argv: list[str]) -> None:
    """Fetch what the command line names."""
    params = load_params()
    match argv:
        case ["base"] if params.base.is_mean:
            with fresh_folder(BASE) as folder:
                write_mean({task: CHECKPOINTS / task for task in params.tasks}, folder, params.base.heads)
                write_source_description(CHECKPOINTS, None, folder, mean_of=sorted(params.tasks))
        case ["base"] if params.vocabulary:
            with fresh_folder(BASE) as folder:  # what is fetched of it was when it was brought into the vocabulary
                shutil.copytree(params.base.source, folder, dirs_exist_ok=True)
        case ["base"]:
            fetch_model(Path(params.base.source), BASE, params.base.pad_token_id)
        case ["task", name]:
            fetch_model(Path(declared(params.tasks, name, "tasks").source), CHECKPOINTS / name)
            put_aside(name)
            write_json(SOURCES / f"{name}.json", asdict(model_origin(CHECKPOINTS / name)))
        case ["data", name]:
            fetch_data(declared(params.tasks, name, "tasks"), DATASETS / name)
        case _:
            raise InputError(
                f"merganser.tasks.fetch: expected base, task NAME or data NAME, got {' '.join(argv) or 'nothing'}"
            )


if __name__ == "__main__":
    run_main(main)
