"""One weight per task: given by name, or from the norms of the weights (NAN, Si et al., 2025).

Legend: T tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from merganser.errors import InputError

INVERSE_NORM = "inverse_norm"  # of `coefficients`: those of NAN


def task_coefficients(
    tasks: Sequence[str], coefficients: Mapping[str, float] | None, key: str = "coefficients"
) -> tuple[float, ...]:
    """List the tasks' coefficients in their order, 1 for a task that is not named.

    Raises InputError naming every task that does not exist.

    >>> task_coefficients(["svhn", "dtd"], {"dtd": 0.5})
    (1.0, 0.5)
    """
    named = coefficients or {}
    unknown = [name for name in named if name not in tasks]
    if unknown:
        raise InputError(f"{key}: no such task: {', '.join(unknown)}; the tasks are {', '.join(tasks)}")
    return tuple(float(named.get(task, 1.0)) for task in tasks)


def check_maps(values: Mapping[str, Any], tasks: Sequence[str], place: str = "") -> None:
    """Raise InputError when a map from tasks, such as `coefficients`, names a task that does not exist.

    `place`: where the values stand, as the message's beginning.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            task_coefficients(tasks, value, f"{place}{key}")


def task_weights(
    values: Mapping[str, Any], tasks: Sequence[str]
) -> Callable[[Sequence[float]], tuple[float, ...]] | None:
    """Return what gives each task's weight from the norms of its weights: its coefficient times its own scaling.

    None where an entry's values hold neither: the deltas stay as they are.

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


def norm_coefficients(norms: Sequence[float]) -> tuple[float, ...]:
    """Return T/2 times each task's share of the inverse norms of one parameter's fine-tuned weights.

    Tasks are weighted equally, by 1/2, where a norm is zero.

    >>> norm_coefficients([1.0, 3.0])
    (0.75, 0.25)
    """
    if not all(norms):
        return (0.5,) * len(norms)
    inverse = [1 / norm for norm in norms]
    return tuple(len(norms) / 2 * each / sum(inverse) for each in inverse)


def _product(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    return tuple(a * b for a, b in zip(first, second, strict=True))
