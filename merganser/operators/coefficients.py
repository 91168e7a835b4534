"""One weight per task, by name or from the norms of the weights; and how many singular triples each task keeps.

Norms of the weights are NAN's (Si et al., 2025). By default a task keeps 1/T of its spectrum.

Legend: T tasks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from merganser.errors import InputError
from merganser.inputs.layers import LayerFactors
from merganser.linalg.counts import count_of

INVERSE_NORM = "inverse_norm"  # value of `coefficients`: weight the tasks as NAN does
ROUNDING = 1e-12  # of a sum of coefficients, relative to their size
PerTask = float | Mapping[str, float]  # one number for all tasks, or one for each by its name


def task_coefficients(
    tasks: Sequence[str], coefficients: Mapping[str, float] | None, key: str = "coefficients"
) -> tuple[float, ...]:
    """Return the tasks' coefficients in the tasks' order, 1 for a task that is not named.

    Raises InputError that names every unknown task.

    >>> task_coefficients(["svhn", "dtd"], {"dtd": 0.5})
    (1.0, 0.5)
    """
    named = coefficients or {}
    unknown = [name for name in named if name not in tasks]
    if unknown:
        raise InputError(f"{key}: no such task: {', '.join(unknown)}; the tasks are {', '.join(tasks)}")
    return tuple(float(named.get(task, 1.0)) for task in tasks)


def check_maps(
    values: Mapping[str, Any], tasks: Sequence[str], every_task: Collection[str] = (), place: str = ""
) -> None:
    """Raise InputError if a map by task, such as `coefficients`, names an unknown task, or lacks one that it needs.

    `every_task`: the values whose maps name every task. `place`: where the values are, the start of the message.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            task_coefficients(tasks, value, f"{place}{key}")
            missing = [task for task in tasks if task not in value]
            if missing and key in every_task:
                raise InputError(f"{place}{key}: {', '.join(missing)} missing; the map must name every task")


def each_of(value: PerTask, tasks: Sequence[str]) -> tuple[float, ...]:
    """Return each task's number.

    >>> each_of(0.2, ["svhn", "dtd"]), each_of({"dtd": 0.5, "svhn": 0.1}, ["svhn", "dtd"])
    ((0.2, 0.2), (0.1, 0.5))
    """
    return tuple(value[task] if isinstance(value, Mapping) else value for task in tasks)


def task_weights(
    values: Mapping[str, Any], tasks: Sequence[str]
) -> Callable[[Sequence[float]], tuple[float, ...]] | None:
    """Return a function from norms to each task's weight: its coefficient times its own scaling.

    None if the entry sets neither: the deltas are not weighted.

    >>> task_weights({"coefficients": {"dtd": 0.5}, "scaling": {"svhn": 2.0}}, ["svhn", "dtd"])([7.0, 9.0])
    (2.0, 0.5)
    """
    coefficients, scaling = values.get("coefficients"), values.get("scaling")
    if coefficients is None and not isinstance(scaling, Mapping):
        return None
    own = task_coefficients(tasks, scaling if isinstance(scaling, Mapping) else None, "scaling")
    if coefficients == INVERSE_NORM:
        return lambda norms: _product(norm_coefficients(norms), own)
    known = _product(task_coefficients(tasks, coefficients), own)
    return lambda _: known


def mean_weights(
    tasks: Sequence[str], coefficients: Mapping[str, float] | str | None
) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """Return a function from norms to each task's weight in a mean; raise InputError if they add up to nothing.

    >>> mean_weights(["svhn", "dtd"], {"dtd": 0.5})([7.0, 9.0])
    (1.0, 0.5)
    """
    weights = task_weights({"coefficients": coefficients}, tasks) or (lambda norms: (1.0,) * len(tasks))
    known = [] if coefficients == INVERSE_NORM else weights([1.0] * len(tasks))
    if known and not any(known):
        raise InputError("coefficients: all are 0; give at least one task more")
    if known and abs(sum(known)) <= ROUNDING * sum(map(abs, known)):
        raise InputError("coefficients: they add up to 0, so the mean would divide by 0; change one of them")
    return weights


def ratio_of(weights: Sequence[float]) -> float:
    """Return how far from the first of two tasks to the second their weights lead; 0 for a single task.

    >>> ratio_of([1.0, 3.0]), ratio_of([2.0])
    (0.75, 0.0)
    """
    return sum(weights[1:]) / sum(weights)


def norm_coefficients(norms: Sequence[float]) -> tuple[float, ...]:
    """Return T/2 times each task's share of the inverse norms of one parameter's fine-tuned weights.

    If a norm is zero, every task's weight is 1/2.

    >>> norm_coefficients([1.0, 3.0])
    (0.75, 0.25)
    """
    if not all(norms):
        return (0.5,) * len(norms)
    inverse = [1 / norm for norm in norms]
    return tuple(len(norms) / 2 * each / sum(inverse) for each in inverse)


def _product(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    return tuple(a * b for a, b in zip(first, second, strict=True))


def share_needed(tasks: int, *, rank_fraction: float | None, **_: Any) -> float:
    """Return the share of each spectrum whose singular vectors are needed.

    >>> share_needed(4, rank_fraction=None), share_needed(4, rank_fraction=0.1)
    (0.25, 0.1)
    """
    return 1 / tasks if rank_fraction is None else rank_fraction


def triples_kept(layer: LayerFactors, rank_fraction: float | None) -> int:
    """Count the triples kept of each task: floor(rank_fraction * R), R // T by default.

    >>> import torch
    >>> from merganser.linalg.decompositions import Factors
    >>> identity = Factors(torch.eye(5), torch.ones(5), torch.eye(5))
    >>> triples_kept(LayerFactors("proj", ("a", "b"), (identity, identity)), None)
    2
    """
    return count_of(share_needed(len(layer.tasks), rank_fraction=rank_fraction), min(layer.shape))
