"""One coefficient per task: given by name, or from the norms of the weights (NAN, Si et al., 2025).

Legend: T tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from merganser.errors import InputError

Coefficients = Mapping[str, float] | Literal["nan"] | None


def task_coefficients(
    tasks: Sequence[str], coefficients: Mapping[str, float] | None, key: str = "coefficients"
) -> tuple[float, ...]:
    """List the tasks' coefficients in their order, 1 for a task that is not named.

    Raises InputError naming every task that does not exist.
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


def norm_coefficients(norms: Sequence[float]) -> tuple[float, ...]:
    """Return T/2 times each task's share of the inverse norms of one parameter's fine-tuned weights.

    Tasks are weighted equally, by 1/2, where a norm is zero.
    """
    if not all(norms):
        return (0.5,) * len(norms)
    inverse = [1 / norm for norm in norms]
    return tuple(len(norms) / 2 * each / sum(inverse) for each in inverse)
