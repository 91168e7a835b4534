"""The stage `data`: write a task's pictures and labels as three splits."""

import hashlib
from pathlib import Path
from random import Random

from datasets import ClassLabel, Features, Image

from common.saving import Split, save_splits
from common.stages import Sizes
from vit_s.tasks import TASKS, Row


def rows_of(task: str, seed: int, most: int) -> list[Row]:
    """Return a task's pictures in the seed's order, the same for tasks of the same pictures; none has a longer side."""
    rows = list(TASKS[task].rows())
    for picture, _ in rows:
        picture.thumbnail((most, most))
    Random(seed).shuffle(rows)
    return rows


def write_data(task: str, seed: int, sizes: Sizes, most: int, out: Path) -> None:
    """Write a task's splits as `datasets` saves them, with a hash of each one's content in `pictures.json`."""
    rows = rows_of(task, seed, most)
    measured = sizes.test + sizes.validation
    parts = {"train": rows[measured : measured + sizes.train], "validation": rows[sizes.test : measured]}
    parts["test"] = rows[: sizes.test]
    splits = {}
    for name, part in parts.items():
        columns = {"image": [picture for picture, _ in part], "label": [label for _, label in part]}
        splits[name] = Split(columns, digest_of(part))
    features = Features({"image": Image(), "label": ClassLabel(names=list(TASKS[task].classes))})
    save_splits(splits, features, out, "pictures.json")


def digest_of(rows: list[Row]) -> str:
    """Hash pictures and labels."""
    digest = hashlib.sha256()
    for picture, label in rows:
        digest.update(f"{picture.mode} {picture.size} {label}\n".encode() + picture.tobytes())
    return digest.hexdigest()
