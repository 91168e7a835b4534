"""Measure one statistic of one task's own model on its validation split; what is already there and matches is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from torch import Tensor

from merganser.checkpoints.kinds import as_matrix
from merganser.checkpoints.reading import open_for_merging
from merganser.checkpoints.tensors import Checkpoint
from merganser.checkpoints.views import from_file
from merganser.config.params import Params, Statistic
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.setups import TaskSetup, open_setup
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.deltas import DeltaFile
from merganser.inputs.embeddings import link_file
from merganser.inputs.heads import read_head
from merganser.inputs.layers import Side
from merganser.inputs.statistics import BASE_FISHER, FISHER, GRAM, INDEX, StatisticsIndex
from merganser.inputs.task_models import own_model, own_parameter
from merganser.models.device import usable
from merganser.outputs import remove_others, replacing
from merganser.statistics import BUDGET
from merganser.statistics.fisher import write_fishers
from merganser.statistics.gram import write_grams
from merganser.statistics.sampling import Sample, draw
from merganser.tasks.kept import digest_of_code
from merganser.tasks.stage import check_found, run_main, stage
from merganser.tasks.stages import BASE, DELTAS, HEADS, SEEDS, STATISTICS, VALIDATION, remove_other_seeds, seed_folders


@dataclass(frozen=True)
class Setting:
    """What a task's statistics are measured with."""

    task: str
    seed: int
    statistic: Statistic
    base: Checkpoint
    deltas: DeltaFile
    setup: TaskSetup
    origin: str  # identifies all that they come from
    budget: int

    def load(self, deltas: DeltaFile | None) -> Sample:
        """Load the task's own model, or the base with the task's head, and draw the examples."""
        self.setup.load(own_model(self.base, deltas))
        return draw(self.setup.prepared, self.statistic.examples, self.seed, self.task)

    def parameter(self, deltas: DeltaFile | None, name: str) -> Tensor:
        """Return a parameter of the task's own model, or of the base, where the network runs."""
        return own_parameter(self.base, deltas, name).to(self.setup.network.device)

    def score(self, parameters: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Score the classes of some examples, differentiable in the parameters: (B, C)."""
        return self.setup.evaluator.class_logits(self.setup.network, self.setup.prepared, parameters, rows)


def measure(params: Params, name: str, task: str, budget: int = BUDGET) -> None:
    """Fill a task's folder of one statistic, with each seed, and link the task's deltas beside it.

    `budget`: bytes that one pass over the examples adds up. The bytes written do not depend on it.
    """
    check_found("families", params.base.family)
    folder = STATISTICS / name / task
    for seed, place in seed_folders(folder, params.seeds).items():
        measure_once(params.with_seed(seed), name, task, budget, place)
    remove_other_seeds(folder, params.seeds)
    _link(DELTAS / f"{task}.safetensors", folder.with_name(f"{task}.safetensors"))


def measure_once(params: Params, name: str, task: str, budget: int, folder: Path) -> None:
    """Fill a folder with one statistic of a task, drawn by one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    setting = _setting(params, params.statistics[name], task, budget)
    index, done = MEASURES[setting.statistic.kind](setting, folder)
    remove_others(folder, {INDEX, SEEDS, *index.files})
    with replacing(folder / INDEX) as file:
        file.write(index.text().encode())
    count = len({(what, file) for what, files in index.files.items() for file in files.values()})
    print(f"{task}: {done} files of {name} measured on {index.examples} examples, {count - done} were there")


def _setting(params: Params, statistic: Statistic, task: str, budget: int) -> Setting:
    prepared, head = Prepared(VALIDATION / task), read_head(HEADS / f"{task}.safetensors")
    check_found("kinds", prepared.about["kind"])
    device = usable(statistic.device, "statistics.*.device")
    return Setting(
        task=task,
        seed=params.first_seed,
        statistic=statistic,
        base=open_for_merging(BASE),
        deltas=DeltaFile(DELTAS / f"{task}.safetensors"),
        setup=open_setup(params.base.family, BASE, task, prepared, head, {}, device),
        origin=_origin(params, statistic, task, prepared.about["kind"]),
        budget=budget,
    )


def _origin(params: Params, statistic: Statistic, task: str, kind: str) -> str:
    """Identify all that a task's statistics come from: contents of files, choices, code."""
    paths = (BASE, DELTAS / f"{task}.safetensors", HEADS / f"{task}.safetensors", VALIDATION / task)
    code = digest_of_code(params, "merganser.tasks.statistics", kinds=[kind])
    chosen = [task, params.first_seed, {**statistic.model_dump(), "base": None}]
    return sha256_of_json([*chosen, code, *map(sha256_of_tree, paths)])


def _grams(setting: Setting, folder: Path) -> tuple[StatisticsIndex, int]:
    sample = setting.load(setting.deltas)
    matrices = {name for name, kind in setting.deltas.kinds.items() if kind == "matrix"}
    files, done = write_grams(setting.setup.network, sample, matrices, folder, setting.origin, setting.budget)
    sides = setting.setup.network.linear_maps()
    turned = {name: _side(sides[name], name in setting.base.transposed) for name in files}
    return StatisticsIndex(len(sample), len(sample), 0, {GRAM: files}, turned), done


def _side(side: Side, transposed: bool) -> Side:
    """Return the side of the deltas that a map's inputs lie on: the other one where these are shown transposed."""
    if not transposed:
        return side
    return "columns" if side == "rows" else "rows"


def _fishers(setting: Setting, folder: Path) -> tuple[StatisticsIndex, int]:
    kinds = setting.deltas.kinds
    sizes = {name: prod(setting.deltas.shape(name)) for name in kinds}

    def shown(name: str, information: Tensor) -> dict[str, Tensor]:
        turned = from_file(setting.base, name, information)
        return {each: as_matrix(value) if kinds[each] == "matrix" else value for each, value in turned.items()}

    files, done, examples = {}, 0, 0
    for what, deltas in {FISHER: setting.deltas, **({BASE_FISHER: None} if setting.statistic.base else {})}.items():
        sample, read = setting.load(deltas), partial(setting.parameter, deltas)
        files[what], measured = write_fishers(
            setting.score, sample, sizes, read, shown, folder / what, setting.origin, setting.budget
        )
        done, examples = done + measured, len(sample)
    passes = examples * len(files)
    return StatisticsIndex(examples, passes, passes, files), done


MEASURES = {"gram": _grams, "fisher": _fishers}  # by `kind`


def _link(source: Path, target: Path) -> None:
    """Give the task's deltas a second name, in place of what has it."""
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
