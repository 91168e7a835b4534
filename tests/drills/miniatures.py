"""Suites of real models from nothing: their own pointers, models of two layers and a few examples at their hub.

Every suite is checked whole: each entry, pointer, column, split, prompt and class against miniatures that are written
without looking at the suite (`tests/miniatures`). Then a suite of each format is used and run as a user does it, on two
of its tasks: one of pictures with all its entries, the others with one entry of each kind of input, one with its
grids. Suites that differ from one that runs by their numbers of tasks are checked alone. What learns takes two steps.
Before and after the runs of two suites, what `--dry-run` expects is held to what there was.
The suites of Llama have a hub each (`tests/miniatures/llama.py`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import datasets
import transformers
import yaml

from dvcfleet.repository import STATE_FOLDER
from dvcfleet.scheduling.durations import last_cpu_times
from merganser.config.inputs import SECTIONS
from merganser.config.loading import load_params
from merganser.flows.suites.files import POINTERS, pointers
from merganser.flows.suites.ready import load_suite
from merganser.sources.pointers import HubPointer, OpenClipPointer, pointer_of
from tests import PYTHONPATH
from tests.hub import Hub, serve
from tests.miniatures import llama, models
from tests.miniatures.data_sets import OWN_CLASSES, PICTURES, TEXTS, write_data_set, write_own
from tests.miniatures.models import Models
from tests.tiny import ROOT, dvc, environment, make_clone, merganser


@dataclass(frozen=True)
class Suite:
    """How a suite's models are written, and which of its tasks and entries run: of `entries` all, one a kind, or these.

    Without tasks it is checked and not run. Entries that are named are those of its grids.
    """

    models: Models
    tasks: tuple[str, ...] = ()
    entries: Literal["all", "kinds"] | tuple[str, ...] = "kinds"


EIGHT, MORE = ("eurosat", "svhn"), ("pcam", "fer2013")
SUITES = {
    "gpt2-glue": Suite(models.GPT2, ("cola", "mnli")),
    "gpt2-glue-4": Suite(models.GPT2, ("cola", "mnli")),
    "roberta-base-glue": Suite(models.ROBERTA, ("mnli", "stsb")),
    "flan-t5-base-glue": Suite(models.FLAN_T5, ("rte", "stsb")),
    "flan-t5-base-glue-lora": Suite(models.FLAN_T5_ADAPTERS, ("mnli", "stsb")),
    "clip-vit-b-32-8": Suite(models.CLIP, EIGHT, "all"),
    "clip-vit-b-32-lora-8": Suite(models.CLIP_ADAPTERS, EIGHT),
    "clip-vit-b-32-6": Suite(models.CLIP, ("eurosat", "gtsrb")),
    "open-clip-vit-b-32-20": Suite(models.OPEN_CLIP, ("fer2013", "emnist")),
    "open-clip-vit-b-16-8": Suite(models.TALL_MASKS, EIGHT),
    "clip-vit-b-16-8": Suite(models.CLIP, EIGHT, ("task_arithmetic", "tsv_m", "dts_d_whole")),
    "clip-vit-l-14-20": Suite(models.CLIP, MORE),
    # Recipes for models of one's own: the base is at the hub, all else on this disk.
    "deberta-v3-base-own": Suite(models.DEBERTA, ("paws", "qasc")),
    "t5-base-own": Suite(models.T5, ("paws", "qasc")),
    "t5-large-own": Suite(models.T5_CLASSIFIERS, ("paws", "qasc")),
    "gpt2-medium-nlg-own": Suite(models.GPT2_ADAPTERS, ("e2e", "dart")),
    "llama-3.1-8b-glue-own": Suite(models.LLAMA_ADAPTERS, ("cola", "mnli")),
    # The same entries on the same two towers, and other tasks, all of which are checked.
    "clip-vit-l-14-6": Suite(models.CLIP),
    "clip-vit-b-32-14": Suite(models.CLIP),
    "clip-vit-b-32-20": Suite(models.CLIP),
    "clip-vit-b-16-14": Suite(models.CLIP),
    "clip-vit-b-16-20": Suite(models.CLIP),
    "clip-vit-l-14-8": Suite(models.CLIP),
    "clip-vit-l-14-14": Suite(models.CLIP),
    "clip-vit-l-14-lora-8": Suite(models.CLIP_ADAPTERS),
    **{
        f"open-clip-vit-{size}": Suite(models.TALL_MASKS)
        for size in ("b-16-14", "b-16-20", "l-14-8", "l-14-14", "l-14-20")
    },
}
WORKERS = "4"  # stages of miniatures wait more than they compute
ESTIMATED = ("gpt2-glue", "clip-vit-b-32-8")
SAMPLED = ("roberta-base-glue",)
ALWAYS = ("base", "individual")  # entries that every report has
FEW = {"steps": 2, "mask_steps": 2, "every": 1, "batch_size": 2}  # of what learns
EXAMPLES = 8
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1, "min": 60, "h": 3600}
FIRST = {"downloaded": 1.25, "of CPU time": 3}  # how far off an estimate may be before anything ran here
AGAIN = {"of CPU time": 1.2, "of disk": 1.02}  # and of what ran before
INSTALL = "pip install -c constraints.txt 'lm_eval[ifeval]'"


def drill(folder: Path, sample: bool) -> None:
    """Check, use and run each suite on a hub of miniatures; of a sample, check one."""
    names = SAMPLED if sample else tuple(SUITES)
    root = make_root(folder / "root")
    with serve(make_hub(folder / "hub", root, names)) as hub:
        online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        check(root, names, online | {"HF_HOME": str(folder / "cache")})
        for name in (name for name in names if SUITES[name].tasks and not sample):
            run(root, name, SUITES[name], hub, online | {"HF_HOME": str(folder / "caches" / name)})
    for name in () if sample else llama.ENTRIES:
        if name == llama.MERGEBENCH and not find_spec("langdetect"):
            print(f"{name}: not run, for what judges its instructions is not installed: {INSTALL}", flush=True)
        else:
            llama.run_suite(folder, name)


def make_root(folder: Path) -> Path:
    """Make a repository with the project's code and all its suites."""
    make_clone(folder)
    for name in ("suites", "published"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("sources"))
    # Of open_clip's own models none has two layers: its repository is named instead of its tag.
    table = yaml.safe_load((folder / POINTERS).read_text())
    for path, about in pointers(folder).items():
        pointer = pointer_of(about, path)
        if isinstance(pointer, OpenClipPointer):
            table[str(path.parent)][path.stem] = {"hub": open_clip_repository(pointer), "follow": "main"}
    (folder / POINTERS).write_text(yaml.safe_dump(table, sort_keys=False))
    return folder


def open_clip_repository(pointer: OpenClipPointer) -> str:
    """Return the repository that open_clip downloads a model of its own from."""
    import open_clip

    return str(open_clip.get_pretrained_cfg(pointer.open_clip, pointer.pretrained)["hf_hub"]).rstrip("/")


def check(root: Path, names: tuple[str, ...], online: dict[str, str]) -> None:
    """Check all of the suites at the hub."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.miniatures.checking", *names]
    paths = {"PYTHONPATH": os.pathsep.join([str(root), PYTHONPATH])}
    done = subprocess.run(command, cwd=root, env=environment() | online | paths, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{done.stdout}all checked in {time.monotonic() - began:.0f} s", flush=True)


def run(root: Path, name: str, suite: Suite, hub: Hub, online: dict[str, str]) -> None:
    """Use and run a suite, cut to some tasks and entries; check that it took what was expected, and nothing is left."""
    began = time.monotonic()
    grids = isinstance(suite.entries, tuple)
    merganser(root, "use", name, "--force", *(["--grids"] if grids else []))
    cut(root / "params.yaml", suite)
    expected = estimate(root, **online) if name in ESTIMATED else {}
    hub.sent.clear()
    said = merganser(root, "run", "--prune", "--workers", WORKERS, **online).stdout
    params = load_params(root / "params.yaml")
    results = json.loads((root / "data/scores.json").read_text())
    assert set(results) == set(params.methods)
    assert (root / "report/index.html").is_file()
    assert "up to date" in dvc(root, "status")
    differences = json.loads(merganser(root, "suites", "diff", "--json").stdout)
    assert {line["entry"] for line in differences} <= set(params.methods)
    downloaded = sum(hub.sent)
    seconds = [float(found) for found in re.findall(r" done in ([0-9.]+) s", said)]
    print(f"{name}: {len(results)} entries, {len(seconds)} stages, {time.monotonic() - began:.0f} s", flush=True)
    if name in ESTIMATED:
        check_estimate(expected, {"downloaded": downloaded, "of CPU time": sum(seconds)}, FIRST)
        again = estimate(root, "--force", **online)
        used = sum(last_cpu_times(root / STATE_FOLDER).values())
        check_estimate(again, {"of CPU time": used, "of disk": written(root)}, AGAIN)


def estimate(root: Path, *options: str, **variables: str) -> dict[str, float]:
    """Return what a run is expected to take, in bytes and seconds, by what of."""
    said = merganser(root, "run", "--dry-run", *options, **variables).stdout
    line = next(line for line in said.splitlines() if line.startswith("expected: "))
    found = re.findall(r"([0-9.]+) (\w+) (of disk|of CPU time|downloaded)", line)
    return {what: float(amount) * UNITS[unit] for amount, unit, what in found}


def written(root: Path) -> int:
    """Return the bytes that a comparison's stages wrote; contents that are equal count as often as they are there."""
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    return sum(out.get("size", 0) for stage in lock["stages"].values() for out in stage.get("outs", []))


def check_estimate(expected: dict[str, float], found: dict[str, float], factors: dict[str, float]) -> None:
    """Hold an estimate to what was found, within a factor of it."""
    print(
        "    " + ", ".join(f"expected {expected[what]:.3g} {what}, was {found[what]:.3g}" for what in factors),
        flush=True,
    )
    for what, factor in factors.items():
        assert 1 / factor <= expected[what] / found[what] <= factor, what


def cut(path: Path, suite: Suite) -> None:
    """Cut a suite in use to the tasks and entries that run."""
    params = yaml.safe_load(path.read_text())
    params["tasks"] = {task: params["tasks"][task] for task in suite.tasks}
    if suite.entries != "all":
        cut_entries(params, () if suite.entries == "kinds" else suite.entries)
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    shorten(path)


def shorten(path: Path) -> None:
    """Have everything that learns take few steps, and ask for no more than miniatures have."""
    params = yaml.safe_load(path.read_text())
    params["decompose"]["rank_fraction"] = 1.0  # which an adaptive rank of half the bytes needs
    for entry in params["methods"].values():
        if entry.get("rank_fraction") == "adaptive":
            entry["ratio"] = 0.5  # of the bytes: one in a hundred of so few holds not even an index
    for about in params.get("statistics", {}).values():
        about["examples"] = EXAMPLES
    for section in ("learned", "surgery"):
        for about in params.get(section, {}).values():
            learns = {"steps", "batch_size"} if section == "surgery" else FEW.keys()
            inner = about.get("inner") != "adamerging"
            if about.get("learner") == "localize_stitch_learned":
                about["examples"] = 1  # of each class
            about.update({key: FEW[key] for key in learns if not (key == "mask_steps" and inner)})
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def cut_entries(params: dict[str, Any], wanted: tuple[str, ...]) -> None:
    """Keep the wanted entries, or one of each kind of input, and what these read."""
    methods, kinds = params["methods"], set[str]()
    kept = {*ALWAYS, *wanted}
    for name, entry in methods.items():
        kind = entry["reads"].partition("/")[0]
        if not wanted and name not in kept and kind not in kinds:
            kinds.add(kind)
            kept.add(name)
    read = {methods[name]["reads"] for name in kept}
    read |= {about["of"] for place in list(read) if (about := section_of(params, place)) and "of" in about}
    kept |= {about["merged"] for place in read if (about := section_of(params, place)) and "merged" in about}
    params["methods"] = {name: entry for name, entry in methods.items() if name in kept}
    read |= {entry["reads"] for entry in params["methods"].values()}
    for section in SECTIONS:
        inner = {key: about for key, about in params.pop(section, {}).items() if f"{section}/{key}" in read}
        params |= {section: inner} if inner else {}


def section_of(params: dict[str, Any], place: str) -> dict[str, Any]:
    """Return what a place that entries read, such as `differences/ties`, is made of; nothing for deltas and svd."""
    section, _, key = place.partition("/")
    return dict(params[section][key]) if key else {}


def make_hub(folder: Path, root: Path, names: Iterable[str]) -> dict[str, Path]:
    """Write all repositories that the suites' pointers name; return their folders."""
    repositories: dict[str, Path] = {}
    table = pointers(root)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()

    def place_of(source: str, kind: str) -> tuple[HubPointer | None, Path]:
        if not source.endswith(".yaml"):
            return None, root / source
        pointer = pointer_of(table[Path(source)], Path(source))
        assert isinstance(pointer, HubPointer), source
        repositories[f"{kind}/{pointer.hub}"] = folder / kind / pointer.hub
        inner = Path(pointer.path or "")  # a folder, or a file in one
        return pointer, folder / kind / pointer.hub / (inner.parent if inner.suffix else inner)

    for name in names:
        params, suite = load_suite(root, name), SUITES[name].models
        _, base = place_of(params.base.source, "models")
        if not base.exists():
            suite.write_base(base)
        outputs = {}
        for place, about in params.with_data.items():
            data, rows = place_of(about.data.source, "datasets")
            outputs[place] = outputs_of(data) if data else OWN_CLASSES
            if not rows.exists():
                if data:
                    write_data_set(data.hub, rows)
                else:
                    write_own(rows)
        tuned = {("tasks", task): about.source for task, about in params.tasks.items()}
        tuned |= {("unseen", task): about.head for task, about in params.unseen.items() if about.head}
        for number, (place, source) in enumerate(tuned.items(), 1):
            _, model = place_of(source, "models")
            if not model.exists():
                suite.write_tuned(model, number, outputs[place])
    return repositories


def outputs_of(data: HubPointer) -> int:
    """Return how many outputs the head of a classifier of a data set has."""
    return (TEXTS[data.hub][str(data.name)].classes or 1) if data.hub in TEXTS else PICTURES[data.hub].classes
