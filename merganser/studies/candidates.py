"""The candidates of a search, and the choice among them: one rule for all methods."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, TypedDict

from merganser.measures.scores import error_of_mean, normalised_score, rank_value

# What is searched where an entry does not say: one rule for all methods. What a paper tries is declared by its method.
SCALINGS = tuple(tenths / 10 for tenths in range(1, 16))
DENSITIES = (0.1, 0.2, 0.4)

Values = dict[str, Any]


class MeasuredScore(TypedDict):
    """The score on one task, and its sampling error; None for a single example."""

    value: float
    stderr: float | None


@dataclass(frozen=True)
class Candidate:
    """Values of a method's parameters, and their merge's scores on the validation data."""

    values: Values
    score: float  # the mean over the tasks
    stderr: float | None  # of it, by the draw of the examples
    by_task: Mapping[str, MeasuredScore]


def default_grid(parameters: Collection[str]) -> dict[str, list[Any]]:
    """Return the searched values for a method with these parameters.

    >>> default_grid(["scaling", "density"])["density"], list(default_grid(["eta"]))
    ([0.1, 0.2, 0.4], [])
    """
    known: dict[str, Sequence[Any]] = {"scaling": SCALINGS, "density": DENSITIES}
    return {name: list(values) for name, values in known.items() if name in parameters}


def value_combinations(over: Mapping[str, Sequence[Any]]) -> list[Values]:
    """List all combinations, the last parameter's values fastest.

    >>> value_combinations({"scaling": [0.5, 1.0], "density": [0.2]})
    [{'scaling': 0.5, 'density': 0.2}, {'scaling': 1.0, 'density': 0.2}]
    """
    return [dict(zip(over, values, strict=True)) for values in product(*over.values())]


def best_candidate(candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate with the highest score; of several, that with the smallest scaling, then the first.

    >>> scores = ((1.0, 0.1 + 0.2 + 0.3), (0.5, 0.3 + 0.2 + 0.1), (0.1, 0.5))  # the first sum is rounded to more
    >>> tried = [Candidate({"scaling": s}, score, None, {}) for s, score in scores]
    >>> best_candidate(tried).values
    {'scaling': 0.5}
    """
    return min(candidates, key=lambda one: (-rank_value(one.score), _scaling(one.values)))


def best_of_each(candidates: Sequence[Candidate], own: Collection[str]) -> Values:
    """Return the best candidate's values, with those of `own` chosen for each task by its own score.

    >>> one, other = ({"a": MeasuredScore(value=a, stderr=None), "b": MeasuredScore(value=b, stderr=None)}
    ...               for a, b in ((0.9, 0.5), (0.8, 0.7)))
    >>> best_of_each([Candidate({"k": 1}, 0.7, None, one), Candidate({"k": 2}, 0.75, None, other)], ["k"])
    {'k': {'a': 1, 'b': 2}}
    """
    chosen = best_candidate(candidates)
    of_task = {task: max(candidates, key=lambda one: one.by_task[task]["value"]).values for task in chosen.by_task}
    return chosen.values | {name: {task: values[name] for task, values in of_task.items()} for name in own}


def _scaling(values: Mapping[str, Any]) -> float:
    scaling = values.get("scaling")
    return float(scaling) if isinstance(scaling, int | float) else inf


def format_values(values: Mapping[str, Any]) -> str:
    """Show a candidate's values in a line.

    >>> format_values({"scaling": 0.3, "elect": True})
    'scaling 0.3, elect True'
    """
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
    )


def relative_candidate(
    values: Values, by_task: Mapping[str, MeasuredScore], individual: Mapping[str, MeasuredScore]
) -> Candidate:
    """Return a candidate with scores relative to the individual models', if all of these are positive."""
    scores, own = ({task: one["value"] for task, one in each.items()} for each in (by_task, individual))
    errors, usable = {task: one["stderr"] for task, one in by_task.items()}, all(value > 0 for value in own.values())
    score = normalised_score(scores, own) if usable else sum(scores.values()) / len(scores)
    return Candidate(values, score, error_of_mean(errors, own if usable else None), by_task)
