"""Projects to measure stages on: params.yaml, a base, fine-tuned models of a chosen width and depth, and their data."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from datasets import Array3D, ClassLabel, Dataset, DatasetDict, Features, disable_progress_bars

from benchmarks.harness import ROOT
from benchmarks.models import TOWER, write_models
from merganser import registry

SIZE, PATCH, HEAD = 224, 32, 64  # pixels of an image, of a patch; width of an attention head: ViT-B/32's
TOKENS = (SIZE // PATCH) ** 2 + 1
IMAGES = 64  # a task
TEXT = {"context_length": 8, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}  # only there to be there
CLASSES = ["one", "two", "three"]
CODE = ("merganser", "tasks", "flows", "dvc.yaml", ".dvcignore", ".gitignore")
# What comes before the stages that are measured, in one process, which starts once.
PREPARE = """
import sys
from merganser.tasks import decompose, extract, fetch
_, until, *tasks = sys.argv
fetch.main(["base"])
for task in tasks:
    fetch.main(["task", task])
    extract.main([task])
    if until == "decompose":
        decompose.main([task])
"""


def settings(width: int, blocks: int) -> dict[str, Any]:
    """Describe, as open_clip does, an image tower of this width and depth, and a text tower of almost nothing."""
    vision = {"image_size": SIZE, "layers": blocks, "width": width, "head_width": HEAD, "patch_size": PATCH}
    return {"embed_dim": width // 3 * 2, "vision_cfg": vision, "text_cfg": TEXT}


def write_project(
    folder: Path, width: int, blocks: int, tasks: int, methods: Sequence[str], images: int = IMAGES
) -> list[str]:
    """Write a project whose entries are methods with their defaults; keep what is there, return the tasks' names."""
    _, models = write_models(folder / "hub", settings(width, blocks), tasks)
    for number, task in enumerate(models):
        write_images(folder / "datasets" / task, images, number)
    params = {
        "seed": 0,
        "base": {"source": "hub/base", "family": "open_clip"},
        "parameters": {"merged": [f"{TOWER}*"], "matrices": "linear"},
        "tasks": {
            task: {"source": f"hub/{task}", "data": {"source": f"datasets/{task}", "templates": ["{}"]}}
            for task in models
        },
        "decompose": {"rank_fraction": 0.5, "dtype": "float32"},
        "joints": {side: {"side": side} for side in map(joint_side, methods) if side},
        "methods": {name: {"method": name, "reads": reads(name)} for name in methods},
        "merge": {"device": "cpu"},
        "evaluation": {"split": "test", "batch_size": 512},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return list(models)


def reads(method: str) -> str:
    """Return what a method reads, as an entry says it: decompositions where it starts with some."""
    side = joint_side(method)
    return f"joints/{side}" if side else "svd" if registry.get(method).factored else "deltas"


def joint_side(method: str) -> str | None:
    """Return the side of the joint decomposition that a method starts with, if it does."""
    return registry.get(method).joint


def write_images(folder: Path, count: int, seed: int) -> None:
    """Write so many random images of three classes, as `datasets` saves them."""
    if folder.is_dir():
        return
    disable_progress_bars()
    drawn = np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)
    features = Features({"image": Array3D((SIZE, SIZE, 3), "uint8"), "label": ClassLabel(names=CLASSES)})
    rows = {"image": list(drawn), "label": [number % len(CLASSES) for number in range(count)]}
    DatasetDict({"test": Dataset.from_dict(rows, features=features)}).save_to_disk(folder)


def environment(threads: int = 1) -> dict[str, str]:
    """Return a stage's environment variables: this `python`, this many threads, no network."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "DVC_NO_ANALYTICS": "1"}


def prepare(folder: Path, tasks: Sequence[str], until: Literal["extract", "decompose"]) -> None:
    """Fetch the base and these tasks' models, extract their deltas, and decompose them if asked."""
    called(folder, [sys.executable, "-c", PREPARE, until, *tasks])


def make_repository(folder: Path) -> None:
    """Make a project a repository of git's and DVC's, with the stages and their code."""
    for name in CODE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    called(folder, ["git", "init", "-q"])
    called(folder, [sys.executable, "-m", "dvc", "init", "-q"])
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")


def called(folder: Path, command: Sequence[str], threads: int = 1) -> str:
    """Run a command in a project and return what it printed; raise RuntimeError with its error output if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment(threads), stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)}: {said[-2000:]}")
    return done.stdout.decode()
