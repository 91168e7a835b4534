"""Measure a task's accuracy with its own model: the shared part of a merge plus the task's overlay."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.data import open_split
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
