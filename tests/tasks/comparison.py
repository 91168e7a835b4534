"""A tiny comparison, run by the stages themselves as far as the evaluations: three tasks, five entries."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from mlflow import MlflowClient

from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import complete_file, load_params
from merganser.config.points import Points
from merganser.outputs import fresh_folder, write_json
from merganser.report.comparison import Comparison
from merganser.report.formats import write_tables
from merganser.report.plots import plot_style
from merganser.report.sections import changes, origin, sections
from merganser.tasks import (
    decompose,
    difference,
    evaluate,
    extract,
    extract_difference,
    fetch,
    learn,
    measure,
    measure_merged,
    merge,
    name_classes,
    point,
    prepare,
    prepare_validation,
    record,
    report,
    route,
    stages,
    statistics,
    step,
    study_rank,
    surgery,
)
from tests import tiny_clip
from tests.tiny_clip import write_clip, write_data_set

TASKS = ("dark", "light", "red")
# of one block: each more is merged, measured and drawn by every test's comparison
_VISION = {**tiny_clip.CONFIG["model_cfg"]["vision_cfg"], "layers": 1}
CONFIG = {**tiny_clip.CONFIG, "model_cfg": {**tiny_clip.CONFIG["model_cfg"], "vision_cfg": _VISION}}
METHODS: dict[str, dict[str, Any]] = {
    "base": {"method": "base", "reads": "deltas"},
    "average": {"method": "average", "reads": "deltas"},
    "sum": {"method": "task_arithmetic", "reads": "deltas", "scaling": 0.5},
    "tsv_c": {"method": "tsv_c", "reads": "svd"},
    "individual": {"method": "individual", "reads": "deltas"},
}
STUDIES: dict[str, dict[str, Any]] = {
    "average": {"method": "average", "reads": "deltas"},
    "tsv_c": {"method": "tsv_c", "reads": "svd"},
    "dare": {"method": "dare", "reads": "deltas"},
}

PLOTS = {
    *("scores", "radar", "memory", "time", "study_tasks", "study_rank"),
    *("cosines", "row_spaces", "alignment", "alignment_depth", "errors"),
    *("interference", "overlap", "agreement", "reconstruction", "effective_rank"),
    *("bounds", "explained_merges", "explained_errors", "explained_tasks", "explained_subsets"),
    *("explained_merges_depth", "explained_subsets_depth"),
    *("procrustes", "dropped", "signs", "products", "confusions"),
}


def write_params(folder: Path, methods: dict[str, dict[str, Any]] = METHODS) -> None:
    """Write the comparison's params.yaml."""
    data = {
        task: {"source": f"sources/{task}", "data": {"source": f"sources/{task}-data", "templates": ["a {} image."]}}
        for task in TASKS
    }
    params = {
        "seed": 0,
        "base": {"source": "sources/base", "family": "open_clip"},
        "parameters": {"merged": ["visual.*"], "matrices": "linear"},
        "tasks": data,
        "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
        "joints": {},
        "differences": {},
        "methods": methods,
        "evaluation": {"split": "test", "batch_size": 8},
        "validation": {"split": "validation"},
        "studies": {"tasks": {"subsets": 2, "methods": STUDIES}, "rank": {"fractions": [0.1, 0.5]}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def run_to_difference(merged: str) -> None:
    """Run the stages from `fetch` to the difference vectors `x` of one merge, validation data included."""
    fetch.main(["base"])
    for task in TASKS:
        fetch.main(["task", task])
        fetch.main(["data", task])
        prepare.main([task])
        prepare_validation.main([task, "split"])
        extract.main([task])
    merge.main([merged])
    difference.main(["x"])


def write_sources(folder: Path) -> None:
    """Write a random base, three copies of its image tower moved a little, and their data."""
    base = write_clip(folder / "base", "open_clip_model.safetensors", seed=7, config=CONFIG)
    for seed, task in enumerate(TASKS):
        generator = torch.Generator().manual_seed(seed)
        moved = {
            name: value + 0.3 * torch.randn(value.shape, generator=generator)
            for name, value in base.items()
            if name.startswith("visual.")
        }
        (folder / task).mkdir()
        (folder / task / "open_clip_config.json").write_text(json.dumps(CONFIG))
        save_tensors(folder / task / "open_clip_model.safetensors", moved)
        write_data_set(folder / f"{task}-data", {"validation": 6, "test": 12 + seed})


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as a stage's command does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_stages(folder: Path) -> None:
    """Run every stage from fetch to the evaluations, measures and studies in a folder with params.yaml and sources."""
    with inside(folder):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            fetch.main(["data", task])
            prepare.main([task])
            extract.main([task])
            decompose.main([task])
        for entry in METHODS:
            merge.main([entry])
            measure_merged.main([entry])
            for task in TASKS:
                evaluate.main([entry, task])
        measure.main([])
        name_classes.main([])
        measure_points()
        for task in TASKS:
            study_rank.main([task, "fractions"])


def run_declared(folder: Path, tasks: Iterable[str], params: Mapping[str, Any], *, with_report: bool = False) -> None:
    """Run the stages of a comparison that says where models and data lie, up to the scores or to the report.

    All are under `sources`; `params` has the methods and whatever else is declared. Merges that are told apart from
    the tasks' models are those of `average`, as `x`.
    """
    named = {task: {"source": f"sources/{task}", "data": {"source": f"sources/{task}-data"}} for task in tasks}
    content = {"base": {"source": "sources/base"}, "tasks": named, "validation": {"split": "validation"}, **params}
    (folder / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    with inside(folder):
        complete_file(Path("params.yaml"))
        _run_up_to_merges(content)
        for entry in content["methods"]:
            merge.main([entry])
            for task in content["tasks"]:
                evaluate.main([entry, task])
        if with_report:
            _run_to_report(content)


def _run_up_to_merges(params: Mapping[str, Any]) -> None:
    """Run the stages that merges read."""
    fetch.main(["base"])
    for task in params["tasks"]:
        fetch.main(["task", task])
        fetch.main(["data", task])
        for stage in (prepare, extract, decompose):
            stage.main([task])
        prepare_validation.main([f"{task}-split"])
        for name in params.get("statistics", ()):
            statistics.main([f"{name}-{task}"])
    if "differences" in params:
        merge.main(["average"])
        difference.main(["x"])
        for task in params["tasks"]:
            extract_difference.main(["x", task])
    for section, stage in (("routers", route), ("surgery", surgery), ("learned", learn)):
        for name in params.get(section, ()):
            stage.main([name])


def _run_to_report(params: Mapping[str, Any]) -> None:
    """Measure and record the merges, and write the report without its plots."""
    for entry in params["methods"]:
        measure_merged.main([entry])
        record.main([entry])
    measure.main([])
    measure_points()
    report_without_plots()


def measure_points(split: str = "") -> list[str]:
    """Measure the points of params.yaml that are not there yet, of a split if one is given; return their ids."""
    found = Points(load_params()).by_id.items()
    missing = {name: one for name, one in found if not (stages.POINTS / one.folder).exists()}
    measured = {name: one for name, one in missing.items() if one.split == (split or one.split)}
    for name, one in measured.items():
        (step if one.tried else point).main([name])
    return list(measured)


def open_comparison() -> Comparison:
    """Open the results in the folder that is worked in."""
    return Comparison(load_params(), stages)


def plots_of(comparison: Comparison, *names: str) -> dict[str, str]:
    """Draw some sections of the report."""
    with plot_style():
        drawn = [
            each.plots(comparison.of(each.read), comparison.wording) for each in map(sections().__getitem__, names)
        ]
    return {name: svg for plots in drawn for name, svg in plots.items()}


def write_sections(folder: Path, comparison: Comparison, *names: str) -> None:
    """Write the tables of some sections of the report."""
    (folder / "plots").mkdir()
    for section in [sections()[name] for name in names]:
        write_tables(folder, section.tables(comparison.of(section.read)))


def report_without_plots(draw: Callable[[Comparison], dict[str, str]] = lambda _: {}) -> None:
    """Write the report of the folder that is worked in, and its numbers, with empty plots but for what `draw` draws.

    For tests that look at no others: drawing all would take most of the time.
    """
    comparison = Comparison(load_params(), stages, {changes.read: None, origin.read: None})
    plots = dict.fromkeys(PLOTS, "<svg></svg>") | draw(comparison)
    with fresh_folder(stages.REPORT) as folder:
        report.write_report(folder, comparison, plots)
    write_json(stages.SCORES, comparison.numbers)
    write_json(stages.SUMMARY, comparison.summary)


def make_comparison(folder: Path) -> Path:
    """Make a folder whose comparison is ready to be recorded, in a store without runs.

    Making its tables takes seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_params(folder)
    write_sources(folder / "sources")
    run_stages(folder)
    MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
    return folder
