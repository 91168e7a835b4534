"""Measure one statistic of one task's own model on its validation split; matching results already there are kept."""

from pathlib import Path

from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.config.sections import Statistic
from merganser.errors import InputError
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import open_setup
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.embeddings import link_file
from merganser.inputs.factors import fingerprint_of
from merganser.inputs.heads import read_head
from merganser.inputs.statistics import INDEX
from merganser.models import usable_device
from merganser.outputs import remove_others, replacing
from merganser.statistics import BUDGET, get_kind
from merganser.statistics.sampling import Setting
from merganser.tasks.stage import check_found, digest_of_code, run_main, stage
from merganser.tasks.stages import BASE, DELTAS, HEADS, SEEDS, STATISTICS, VALIDATION, remove_other_seeds, seed_folders

FOUND_BY_NAME = "merganser.statistics.kinds.*"  # the code of whatever measures a statistic: of this stage alone


def measure(params: Params, name: str, task: str, budget: int = BUDGET) -> None:
    """Measure a statistic of a task with each seed, and link the task's deltas into the folder.

    `budget`: bytes that one pass over the examples may add up. The bytes written do not depend on it.
    """
    check_found("families", params.base.family)
    folder = STATISTICS / name / task
    for seed, place in seed_folders(folder, params.seeds).items():
        measure_once(params.with_seed(seed), name, task, budget, place)
    remove_other_seeds(folder, params.seeds)
    _link(DELTAS / f"{task}.safetensors", folder.with_name(f"{task}.safetensors"))


def measure_once(params: Params, name: str, task: str, budget: int, folder: Path) -> None:
    """Measure one statistic of a task into a folder, with the examples drawn by one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    setting = _setting(params, params.statistics[name], task, budget)
    kind = params.statistics[name].kind
    index, done = get_kind(kind).measure(setting, folder)
    remove_others(folder, {INDEX, SEEDS, *index.files})
    for what, files in index.files.items():
        remove_others(folder / what, set(files.values()))
        for each, written in files.items():
            if fingerprint_of(folder / what / written) != setting.origin:
                where = f"merganser/statistics/kinds/{kind}.py"
                raise InputError(
                    f"{where}: its index has {what} of {each}, which it did not write; write_statistic does"
                )
    with replacing(folder / INDEX) as file:
        file.write(index.text().encode())
    count = len({(what, file) for what, files in index.files.items() for file in files.values()})
    print(f"{task}: {done} files of {name} measured on {index.examples} examples, {count - done} were there")


def _setting(params: Params, statistic: Statistic, task: str, budget: int) -> Setting:
    prepared, head = Prepared(VALIDATION / task), read_head(HEADS / f"{task}.safetensors")
    check_found("kinds", prepared.about["kind"])
    device = usable_device(statistic.device, "statistics.*.device")
    return Setting(
        task=task,
        seed=params.first_seed,
        examples=statistic.examples,
        of_base=statistic.base,
        base=open_for_merging(BASE),
        deltas=DeltaFile(DELTAS / f"{task}.safetensors"),
        setup=open_setup(params.base.family, BASE, task, prepared, head, {}, device),
        origin=_origin(params, statistic, task, prepared.about["kind"]),
        budget=budget,
    )


def _origin(params: Params, statistic: Statistic, task: str, kind: str) -> str:
    """Identify everything that a task's statistics depend on: contents of files, choices, code."""
    paths = (BASE, DELTAS / f"{task}.safetensors", HEADS / f"{task}.safetensors", VALIDATION / task)
    code = digest_of_code(params, "merganser.tasks.statistics", kinds=[kind])
    chosen = [task, params.first_seed, {**statistic.model_dump(), "base": None}]
    return sha256_of_json([*chosen, code, *map(sha256_of_tree, paths)])


def _link(source: Path, target: Path) -> None:
    """Hard-link the task's deltas, replacing what has that name."""
    draft = target.with_name(f".{target.name}.draft")
    draft.unlink(missing_ok=True)
    link_file(source, draft)
    draft.replace(target)


@stage("statistics", "tasks", timed=True)
def main(params: Params, name: str, task: str) -> None:
    """Measure the statistic and the task named on the command line."""
    measure(params, name, task)


if __name__ == "__main__":
    run_main(main)
