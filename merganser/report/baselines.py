"""What a task's metric gives without a model: by chance, and by always answering the commonest class."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from merganser.evaluation.examples import Results, read_results
from merganser.evaluation.metrics import METRICS
from merganser.report.rows import Row


class Baseline(NamedTuple):
    """A task's scores without a model; None where its metric compares numbers or texts and not classes."""

    task: str
    classes: int | None = None  # that occur among the labels
    chance: float | None = None  # the expected score of uniform draws
    majority: float | None = None  # of always the commonest label


def read_baselines(row: Row, examples: Path) -> list[Baseline]:
    """Return the baselines of each task that an entry was evaluated on, by its examples' labels."""
    found = row.scores.metrics.items()
    return [
        baseline(task, metric, read_results(examples / row.entry / f"{task}.safetensors")) for task, metric in found
    ]


def baseline(task: str, metric: str, results: Results) -> Baseline:
    """Return a task's scores without a model.

    By chance, each of K classes is predicted with probability 1/K whatever the label: of the metric, that is its value
    on all pairs of a label and a class.

    >>> baseline("a", "accuracy", Results(np.ones(4), np.zeros(4, int), np.array([0, 1, 1, 2])))[1:]
    (3, 0.3333333333333333, 0.5)
    """
    labels = results.label
    if labels is None or labels.dtype.kind == "f" or metric not in METRICS:
        return Baseline(task)
    classes, counts = np.unique(labels, return_counts=True)
    compute = METRICS[metric].compute
    pairs = np.tile(classes, len(classes)), np.repeat(classes, len(classes))
    chance = compute(*pairs, np.repeat(counts / len(classes), len(classes)))
    majority = compute(np.full_like(labels, classes[counts.argmax()]), labels, None)
    return Baseline(task, len(classes), float(chance), float(majority))


def mean_of(baselines: Sequence[Baseline], name: str) -> float | None:
    """Return the mean over the tasks; None where a task has none."""
    values = [getattr(each, name) for each in baselines]
    return None if None in values else float(np.mean(values))
