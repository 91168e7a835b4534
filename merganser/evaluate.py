"""Measure a task's accuracy with its own model: the shared part of a merge plus the task's overlay."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.errors import InputError
from merganser.models import load_classifier


def evaluate(
    model: Path,
    parameters: Iterable[tuple[str, Tensor]],
    data: Path,
    *,
    family: str,
    templates: Sequence[str],
    split: str,
    batch_size: int,
) -> dict[str, Any]:
    """Return accuracy, correct and total of a model on one split of a saved data set.

    `model` is the folder with the configuration; classes are named by the data set's `label` feature, and each is
    described by every template with its name in place of `{}`.
    """
    rows = open_split(data, split)
    names = rows.features["label"].names
    prompts = [[template.format(name) for template in templates] for name in names]
    classifier = load_classifier(family)(model, parameters, prompts)
    correct = 0
    for batch in rows.iter(batch_size=batch_size):
        best = classifier.logits(classifier.pixels(batch["image"])).argmax(dim=1)
        correct += int((best.numpy() == batch["label"]).sum())
    return {"accuracy": correct / len(rows), "correct": correct, "total": len(rows)}


def open_split(data: Path, split: str) -> Any:
    """Open one split of a saved data set, memory-mapped, images as PIL images or arrays and labels as integers."""
    if not (data / "dataset_dict.json").is_file():
        raise InputError(f"{data}: no saved data set; fetch it first")
    splits = json.loads((data / "dataset_dict.json").read_text())["splits"]
    if split not in splits:
        raise InputError(f"evaluation.split: {data} has no split {split!r}; it has {', '.join(splits)}")
    from datasets import Image, load_from_disk

    rows = load_from_disk(data / split)
    if not len(rows):
        raise InputError(f"{data}: split {split} is empty")
    if isinstance(rows.features["image"], Image):
        return rows
    # Plain arrays would come as nested lists, a hundred times slower.
    return rows.with_format("numpy", columns=["image"], output_all_columns=True, dtype="uint8")
