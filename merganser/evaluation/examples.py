"""A model's result for each example of a task, on disk: paired tests compare two models example by example.

A safetensors file has N values each of `score` (float64: 1 or 0, or what the metric is the mean of), `prediction` and
`label` (int64 or float64), as far as the metric needs them and the kind of task has them as numbers. For a text with
references the label is a checksum of these, and the prediction, if any, has the metric's counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from merganser.errors import InputError
from merganser.evaluation.metrics import METRICS

Numbers = NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class Results:
    """The results of N examples: the scores that a metric averages, or predictions and labels that it compares."""

    score: NDArray[np.float64] | None = None
    prediction: Numbers | None = None  # (N,), or (N, K) counts
    label: Numbers | None = None

    def at(self, places: Sequence[int]) -> "Results":
        """Return the results of some examples."""
        return Results(**{name: None if value is None else value[list(places)] for name, value in vars(self).items()})

    def __len__(self) -> int:
        """Return the number of examples."""
        values = self.prediction if self.score is None else self.score
        assert values is not None, "results without scores and without predictions"
        return len(values)


def compare_predictions(metric: str, predictions: ArrayLike, labels: ArrayLike) -> Results:
    """Compare predictions with labels, numbers or texts; for texts only scores are kept.

    >>> compare_predictions("accuracy", [1, 0], [1, 1]).score.tolist()
    [1.0, 0.0]
    """
    answers, given = np.asarray(predictions), np.asarray(labels)
    score = (answers == given).astype(np.float64) if METRICS[metric].is_mean else None
    if answers.dtype.kind in "US":
        return Results(score)
    return Results(score, _numbers(answers), _numbers(given))


def compare_texts(metric: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Results:
    """Score texts against one or more references each.

    >>> compare_texts("rouge_l", ["the cat", "a dog"], [["the cat"], ["no", "a cat"]]).score.tolist()
    [1.0, 0.5]
    """
    measure = METRICS[metric].of_texts
    assert measure is not None, f"{metric} is no metric of texts"
    values = measure(predictions, references)
    label = np.array([crc32("\n".join(each).encode()) for each in references], dtype=np.float64)
    return Results(values, None, label) if values.ndim == 1 else Results(None, values, label)


def mean_of_seeds(runs: Sequence[Results]) -> Results:
    """Return the results that represent several seeds: each example's mean score, else the first seed's."""
    scores = [results.score for results in runs if results.score is not None]
    return runs[0] if len(scores) < 2 else Results(np.mean(scores, axis=0), None, runs[0].label)


def _numbers(values: NDArray[Any]) -> Numbers:
    return values.astype(np.float64) if values.dtype.kind == "f" else values.astype(np.int64)


def write_results(path: Path, results: Results) -> None:
    """Write a task's results as a new file, and the folders that it needs; a link's target stays as it is."""
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(save({name: value for name, value in vars(results).items() if value is not None}))
    draft.replace(path)


def read_results(path: Path) -> Results:
    """Read a task's results; raise InputError if the file is missing or is not a file of results."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; run the stage that writes it first (`merganser run` does)") from error
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole file of results ({error}); run its stage again") from error
    unknown = sorted(set(tensors) - set(Results.__dataclass_fields__))
    if unknown or not ({"score"} <= set(tensors) or {"prediction", "label"} <= set(tensors)):
        raise InputError(
            f"{path}: holds {', '.join(sorted(tensors)) or 'nothing'}; expected score, or prediction and label"
        )
    if len({value.shape[:1] for value in tensors.values()}) > 1:
        raise InputError(f"{path}: its columns are not of one length; run its stage again")
    return Results(**tensors)
