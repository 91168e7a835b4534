"""Score a task with its own model: the shared part of a merge plus the task's overlay."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from merganser.evaluation.examples import compare
from merganser.evaluation.images import batches, open_split
from merganser.evaluation.scoring import Score, score_of
from merganser.models import Classifier, open_network


@dataclass(frozen=True)
class Examples:
    """One task's images and labels, read batch by batch, and each class's prompts."""

    rows: Any
    prompts: Sequence[Sequence[str]]


def open_examples(data: Path, split: str, templates: Sequence[str]) -> Examples:
    """Open one split of a saved data set.

    Classes are named by the `label` feature; each is described by every template with its name in place of `{}`.
    """
    rows = open_split(data, split)
    names = rows.features["label"].names
    return Examples(rows, [[template.format(name) for template in templates] for name in names])


def score(classifier: Classifier, examples: Examples, batch_size: int) -> Score:
    """Return the accuracy of a classifier on one task's examples."""
    predictions, labels = [], []
    for batch in batches(examples.rows, batch_size):
        predictions.append(classifier.logits(classifier.pixels(batch["image"])).argmax(dim=1).numpy())
        labels.append(batch["label"])
    return score_of("accuracy", compare("accuracy", np.concatenate(predictions), np.concatenate(labels)))


def evaluate(
    model: Path,
    parameters: Iterable[tuple[str, Tensor]],
    data: Path,
    *,
    family: str,
    templates: Sequence[str],
    split: str,
    batch_size: int,
) -> Score:
    """Return the accuracy of a model on one split of a saved data set.

    `model` is the folder with the configuration, `parameters` the task's own model.
    """
    examples = open_examples(data, split, templates)
    network = open_network(family, model)
    network.load(parameters)
    return score(network.classifier(examples.prompts), examples, batch_size)
