"""Predict what the stages cost, measure whole processes, print the ratios: `python -m benchmarks.costs`.

Then reckon what a model of 70 billion parameters would cost. The formulas are `benchmarks.cost_model`'s, the rates
`benchmarks.rates`'s: nothing is fitted to the processes that are measured. `--worked` prints the last part only, with
the rates of the last run; `--short` varies the width alone, evaluates nothing, sends nothing to a remote and leaves the
large model out.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks import cost_model as costs
from benchmarks.cost_model import Cost, Model, Rates
from benchmarks.harness import MB, RESULTS, Run, as_table, described, machine, measure, write_results
from benchmarks.llama import in_words
from benchmarks.projects import IMAGES, TOKENS, called, environment, prepare, write_project
from benchmarks.rates import as_text, measure_rates
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.tensors import SafetensorsFile, read_header
from merganser.inputs.factors import FactorSettings

WIDTH, BLOCKS, TASKS = 512, 2, 4
METHODS = ("task_arithmetic", "tsv_m", "drm_h")  # one for each way to work on a layer
SETTINGS = FactorSettings(0.5)  # params.yaml's


class Setting(NamedTuple):
    """A size at which the stages are measured."""

    width: int = WIDTH
    blocks: int = BLOCKS
    tasks: int = TASKS


VARIED: dict[str, tuple[Setting, ...]] = {
    "width": tuple(Setting(width=width) for width in (256, WIDTH, 768)),
    "depth": tuple(Setting(blocks=blocks) for blocks in (1, BLOCKS, 4)),
    "tasks": tuple(Setting(tasks=tasks) for tasks in (2, TASKS, 8)),
}


@dataclass(frozen=True)
class Checked:
    """A stage at one size: what was predicted, and what a process took."""

    stage: str
    setting: Setting
    seconds: float  # predicted CPU time, the start included
    cpu_s: float  # measured
    start: float  # what of both is the start
    written: int  # predicted bytes, without headers
    size: int  # measured
    memory: float  # predicted anonymous bytes
    anonymous: int  # measured


def main() -> None:
    """Measure the rates and the processes; print them and the worked example as Markdown, write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worked", action="store_true", help="only the worked example, with the rates of the last run")
    parser.add_argument(
        "--short", action="store_true", help="vary the width alone; no evaluation, network, large model"
    )
    options = parser.parse_args()
    varied = {"width": VARIED["width"]} if options.short else VARIED
    results = RESULTS / "costs.json"
    if options.worked:
        found = json.loads(results.read_text())["rates"]
        tables = {name: {int(size): rate for size, rate in found[name].items()} for name in ("values", "vectors")}
        print(in_words(Rates(**found | tables)))
        return
    print(described(machine()), flush=True)
    rates = measure_rates()
    print(f"\n{as_text(rates)}\n", flush=True)
    checked = []
    sizes = {setting for settings in varied.values() for setting in settings}
    for row in check(rates, sizes, evaluations=not options.short):
        checked.append(row)
        print(
            f"{row.stage} {tuple(row.setting)}: {row.cpu_s:.2f} s, predicted {row.seconds:.2f}",
            file=sys.stderr,
            flush=True,
        )
    for name, settings in varied.items():
        print(table(name, [row for row in checked if row.setting in settings]), "\n")
    network = [] if options.short else list(check_network())
    if network:
        print(network_table(network), "\n")
    if not options.short:
        print(in_words(rates))
    write_results(results, {"rates": rates, "checked": checked, "network": network})


def check(rates: Rates, sizes: Set[Setting], evaluations: bool) -> Iterator[Checked]:
    """Measure every stage at every size, each as a process of its own on one thread."""
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        for width, blocks in sorted({(size.width, size.blocks) for size in sizes}):
            folder = Path(temporary) / f"{width}-{blocks}"
            settings = sorted(size for size in sizes if (size.width, size.blocks) == (width, blocks))
            tasks = write_project(folder, width, blocks, max(size.tasks for size in settings), METHODS)
            model = described_model(folder)
            prepare(folder, tasks[1:], until="decompose")
            yield from check_task(folder, model, tasks[0], Setting(width, blocks), rates)
            for setting in settings:
                write_project(folder, width, blocks, setting.tasks, METHODS)
                yield from check_merges(folder, model, setting, rates)
            if evaluations:
                yield check_evaluation(folder, model, tasks[0], Setting(width, blocks), rates)


def described_model(folder: Path) -> Model:
    """Return the shapes of a project's models."""
    base, tuned = (SafetensorsFile(folder / f"hub/{name}/model.safetensors").specs for name in ("base", "task0"))
    return costs.model_of(base, tuned, ParameterRules(("visual.*",)))


def check_task(folder: Path, model: Model, task: str, setting: Setting, rates: Rates) -> Iterator[Checked]:
    """Measure the stages of one task."""
    checkpoint, deltas = (
        folder / f"data/checkpoints/{task}/model.safetensors",
        folder / f"data/deltas/{task}.safetensors",
    )
    stages: tuple[tuple[str, list[str], Cost, Path], ...] = (
        ("fetch", ["merganser.tasks.fetch", "task", task], costs.fetch(model, rates), checkpoint),
        ("extract", ["merganser.tasks.extract", task], costs.extract(model, rates), deltas),
        (
            "decompose",
            ["merganser.tasks.decompose", task],
            costs.decompose(model, SETTINGS, rates),
            folder / f"data/svd/{task}",
        ),
    )
    for stage, words, cost, out in stages:
        yield checked(stage, words, folder, cost, out, setting, rates)


def check_merges(folder: Path, model: Model, setting: Setting, rates: Rates) -> Iterator[Checked]:
    """Measure the joint decomposition, and a merge of each kind."""
    joined, bases = costs.join(model, setting.tasks, rates), folder / "data/joints/rows/bases"
    yield checked("join", ["merganser.tasks.join", "rows"], folder, joined, bases, setting, rates)
    predict: dict[str, Callable[[], Cost]] = {
        "task_arithmetic": lambda: costs.merge_elementwise(model, setting.tasks, rates),
        "tsv_m": lambda: costs.merge_svd(model, setting.tasks, SETTINGS, rates),
        "drm_h": lambda: costs.merge_joint(model, setting.tasks, rates),
    }
    for method, cost in predict.items():
        words, out = ["merganser.tasks.merge", method], folder / f"data/merged/{method}/model.safetensors"
        yield checked(f"merge {method}", words, folder, cost(), out, setting, rates)


def check_evaluation(folder: Path, model: Model, task: str, setting: Setting, rates: Rates) -> Checked:
    """Measure the evaluation of a merge on one task."""
    called(folder, [sys.executable, "-m", "merganser.tasks.fetch", "data", task])
    cost, words = costs.evaluate(model, TOKENS, IMAGES, rates), ["merganser.tasks.evaluate", "tsv_m", task]
    return checked("evaluate", words, folder, cost, None, setting, rates)


def checked(
    stage: str,
    words: Sequence[str],
    folder: Path,
    cost: Cost,
    out: Path | None,
    setting: Setting,
    rates: Rates,
) -> Checked:
    """Measure one process beside what was predicted of it."""
    network = stage == "evaluate"
    start = rates.start_evaluate if network else rates.start
    found = measure(Run([sys.executable, "-m", *words], folder, environment()))
    size = payload(out) if out else 0
    memory = (rates.floor_evaluate if network else rates.floor) + cost.memory
    return Checked(
        stage, setting, start + cost.seconds, found.cpu_s, start, cost.written, size, memory, found.peak_anonymous_bytes
    )


def payload(path: Path) -> int:
    """Return the bytes of a safetensors file, or of all in a folder, without their headers."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return sum(file.stat().st_size - read_header(file)[1] for file in files)


def table(varied: str, rows: Sequence[Checked]) -> str:
    """Write measured sizes beside predicted ones, for one quantity that was varied."""
    heads = [
        f"stage, {varied}",
        "CPU, s",
        "predicted",
        "ratio",
        "without start",
        "written, MB",
        "ratio",
        "memory, MB",
        "ratio",
    ]
    lines = [
        (
            f"{row.stage}, {getattr(row.setting, FIELDS[varied])}",
            f"{row.cpu_s:.2f}",
            f"{row.seconds:.2f}",
            f"{row.seconds / row.cpu_s:.2f}",
            f"{(row.seconds - row.start) / (row.cpu_s - row.start):.2f}" if row.seconds - row.start > ENOUGH else "",
            f"{row.size / MB:.1f}" if row.size else "",
            f"{row.written / row.size:.3f}" if row.size else "",
            f"{row.anonymous / MB:.0f}",
            f"{row.memory / row.anonymous:.2f}",
        )
        for row in sorted(rows, key=lambda row: (row.stage, row.setting))
        if varied != "tasks" or row.stage.startswith(("merge", "join"))
    ]
    return as_table(heads, lines)


FIELDS = {"width": "width", "depth": "blocks", "tasks": "tasks"}
ENOUGH = 0.5  # s: what a stage computes, where it can be told from how its start varies


class Carried(NamedTuple):
    """What one node sent to a DVC remote, and another received: bytes, predicted and measured."""

    setting: Setting
    predicted: int
    sent: int
    received: int


def check_network() -> Iterator[Carried]:
    """Push the deltas and factors of some tasks to a remote by DVC, and pull them into another clone."""
    dvc = [sys.executable, "-m", "dvc"]
    for setting in VARIED["tasks"]:
        with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
            here, there, remote = (Path(temporary) / name for name in ("here", "there", "remote"))
            tasks = write_project(here, 256, BLOCKS, setting.tasks, METHODS)
            model = described_model(here)
            prepare(here, tasks, until="decompose")
            called(here, ["git", "init", "-q"])
            called(here, [*dvc, "init", "-q"])
            called(here, [*dvc, "remote", "add", "-q", "-d", "shared", str(remote)])
            called(here, [*dvc, "add", "-q", "data/deltas", "data/svd"])
            called(here, [*dvc, "push", "-q"])
            there.mkdir()
            called(there, ["git", "init", "-q"])
            called(there, [*dvc, "init", "-q"])
            for name in (".dvc/config", "data/deltas.dvc", "data/svd.dvc"):
                (there / name).parent.mkdir(exist_ok=True)
                (there / name).write_bytes((here / name).read_bytes())
            called(there, [*dvc, "pull", "-q"])
            predicted = setting.tasks * (costs.delta_bytes(model) + costs.factor_bytes(model, SETTINGS))
            yield Carried(setting, predicted, weight(remote), weight(there / ".dvc/cache"))


def weight(folder: Path) -> int:
    """Add up the sizes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def network_table(rows: Sequence[Carried]) -> str:
    """Write what was carried beside what was predicted."""
    lines = [
        (
            f"{row.setting.tasks} tasks",
            f"{row.predicted / MB:.1f}",
            f"{row.sent / MB:.1f}",
            f"{row.received / MB:.1f}",
            f"{row.predicted / row.sent:.3f}",
        )
        for row in rows
    ]
    return as_table(["deltas and factors of", "predicted, MB", "pushed", "pulled", "ratio"], lines)


if __name__ == "__main__":
    main()
