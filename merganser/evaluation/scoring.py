"""A task's score: its metric's value, the number of examples, and the standard error."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from merganser.errors import InputError
from merganser.evaluation.examples import Results, mean_of_seeds
from merganser.evaluation.metrics import METRICS, Floats

RESAMPLES = 500
SEED = 0
ROUNDING = 1e-6  # by which a correlation may be beyond 1
BLOCK = 2**18  # numbers in memory at once: few enough for a processor's cache


class Score(TypedDict):
    """The evaluation of one model on one task, as in its file."""

    metric: str
    value: float
    count: int  # examples
    stderr: float | None  # of the value, by the draw of the examples; None for a single example
    device: NotRequired[str]
    known: NotRequired[float]  # the value with the task's label, where this one is without
    router: NotRequired[float]  # the share of examples, or of tokens and layers, that were given to the task
    seeds: NotRequired[list[float]]  # the value of each seed's merge, where there are several; `value` is their mean
    spread: NotRequired[float]  # their sample standard deviation
    uniform: NotRequired[float]  # on an unseen task, the value of the tasks' parts in equal shares
    similar: NotRequired[float]  # and by the likeness of the tasks' class names
    oracle: NotRequired[float]  # and of one task's part alone, the best by this value
    oracle_task: NotRequired[str]  # which that is
    data_sets: NotRequired[dict[str, float]]  # the value on each data set of a group


def score_of(metric: str, results: Results) -> Score:
    """Score results: the mean of their scores if they have any, else the metric of predictions and labels.

    The standard error of a mean is that of the sample; that of any other metric is the deviation over bootstrap
    resamples.
    """
    if results.score is not None:
        value, error = results.score.mean(), mean_error(results.score)
    else:
        assert results.prediction is not None
        assert results.label is not None
        value = METRICS[metric].compute(results.prediction, results.label, None)
        resampled = bootstrap(metric, [results.prediction], results.label)[0]
        error = float(resampled.std(ddof=1)) if len(results) > 1 else None
    if not abs(value) < 1 + ROUNDING:  # NaN neither
        raise InputError(
            f"{metric}: its value is {value:g}, and a metric is a fraction, from -1 to 1; correct its module"
        )
    return {"metric": metric, "value": float(value), "count": len(results), "stderr": error}


def score_of_seeds(metric: str, runs: Sequence[Results]) -> Score:
    """Score several seeds' merges on the same examples: the mean value, its sampling error, and the seeds' spread.

    The error of a mean is that of each example's mean over the seeds; for any other metric it is the mean of the
    seeds' errors, which is an upper bound.
    """
    scores = [score_of(metric, results) for results in runs]
    if len(scores) == 1:
        return scores[0]
    values, errors = [score["value"] for score in scores], [score["stderr"] for score in scores]
    score = mean_of_seeds(runs).score
    known = [error for error in errors if error is not None]
    error = mean_error(score) if score is not None else fmean(known) if known else None
    spread = {"seeds": values, "spread": stdev(values)}
    return {"metric": metric, "value": fmean(values), "count": len(runs[0]), "stderr": error, **spread}  # type: ignore[typeddict-item]


def score_of_data_sets(metric: str, runs: Sequence[Results], members: Sequence[str]) -> dict[str, float]:
    """Score seeds' merges on each data set of a group: the mean value by data set."""
    places = {member: [i for i, each in enumerate(members) if each == member] for member in dict.fromkeys(members)}
    return {
        member: fmean(score_of(metric, results.at(own))["value"] for results in runs) for member, own in places.items()
    }


def by_data_set(scores: Mapping[str, Score]) -> dict[tuple[str, str], float]:
    """Return the values on the data sets of group tasks, by task and data set."""
    return {(task, name): value for task, one in scores.items() for name, value in one.get("data_sets", {}).items()}


def mean_error(scores: Floats) -> float | None:
    """Return the standard error of a mean, the sample's deviation over sqrt(N): for shares sqrt(p (1 - p) / (N - 1)).

    >>> mean_error(np.array([1.0, 0.0]))
    0.5
    """
    return float(scores.std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else None


def bootstrap(metric: str, predictions: Sequence[ArrayLike], labels: ArrayLike) -> Floats:
    """Return a metric of M models on the same resamples of the examples (M, RESAMPLES)."""
    compute = METRICS[metric].compute
    blocks = [[compute(one, labels, weights) for one in predictions] for weights in resamples(len(np.asarray(labels)))]
    return np.concatenate(blocks, axis=1)


def resamples(count: int) -> Iterator[Floats]:
    """Resample the examples with replacement RESAMPLES times: how often each was drawn (B, N), in blocks.

    The draws depend on the number of examples alone, so all models get the same ones.
    """
    generator = np.random.default_rng(SEED)
    block = max(1, BLOCK // count)
    for start in range(0, RESAMPLES, block):
        rows = min(block, RESAMPLES - start)
        drawn = generator.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
